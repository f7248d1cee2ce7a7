"""Files that are cut short, damaged or no video are refused, with what is left of them."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import av
import numpy as np
import pytest

from tests.media.files import Recipe, box, container_stamps, read_numbers, sound_file, tenths, tone
from vllm_mimo.media import video
from vllm_mimo.media.container import packets
from vllm_mimo.media.cut_short import missing_part
from vllm_mimo.media.settings import MediaError
from vllm_mimo.media.video import decode_video, scan


def decode(data: bytes) -> video.DecodedVideo:
    return decode_video(data, lambda total, _: list(range(total)), audio_rate=16_000)


def noisy(container: str, **kwargs) -> bytes:
    """A video whose frames are large beside its headers."""
    return Recipe(tenths(60), container, size=(256, 192), gop=5, **kwargs).make()


FAST_START = {"movflags": "faststart"}
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize(
    ("container", "options", "frames"),
    [
        ("mp4", FAST_START, r"[1-9]\d* frames of it could be decoded"),
        ("mp4", FRAGMENTS, r"[1-9]\d* frames of it could be decoded"),
        ("mp4", None, "0 frames of it could be decoded"),  # its index was at the end
        ("matroska", None, r"[1-9]\d* frames of it could be decoded"),
        ("avi", None, r"[1-9]\d* frames of it could be decoded"),
    ],
)
def test_cut_short(container: str, options: dict | None, frames: str, share: float) -> None:
    codec = "mpeg4" if container == "avi" else "libx264"
    data = noisy(container, codec=codec, options=options)
    assert missing_part(data) is None
    cut = data[: int(len(data) * share)]
    if share < 0.95:
        assert missing_part(cut) is not None
    for read in (scan, decode):
        with pytest.raises(MediaError, match=rf"(?s)cut short: .* but the file has .*; {frames}"):
            read(cut)


def test_number_of_decodable_frames_is_right() -> None:
    data = Recipe(
        tenths(40), codec="ffv1", container="matroska", pix_fmt="bgr0", size=(40, 30)
    ).make()
    with av.open(io.BytesIO(data)) as file:
        sizes = [packet.size for packet in file.demux(video=0) if packet.size]
        file.seek(0)
        packets = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    assert len(sizes) == 40
    end = data.index(packets[24]) + sizes[24]
    with pytest.raises(MediaError, match="; 25 frames of it"):
        scan(data[:end])


def test_transport_stream_may_end_anywhere() -> None:
    data = Recipe(tenths(40), "mpegts", b_frames=0).make()
    found = decode(data[: len(data) * 3 // 5])
    assert 10 < found.total_frames < 40
    assert read_numbers(found.frames) == list(range(found.total_frames))


def test_live_recording_without_a_length() -> None:
    data = Recipe(tenths(20), "matroska", options={"live": "1"}).make()
    assert decode(data).total_frames == 20


def test_padding_after_the_end_does_no_harm() -> None:
    data = Recipe(tenths(5)).make()
    assert decode(data + struct.pack(">I4s", 1 << 20, b"free")).total_frames == 5
    assert decode(data + bytes(1000)).total_frames == 5


def spoiled(data: bytes, share: float, keep: int = 0) -> bytes:
    """Zero the last share of the video's packets (of a codec whose packets stand alone)."""
    with av.open(io.BytesIO(data)) as file:
        packets = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    for packet in packets[round(len(packets) * (1 - share)) :]:
        data = data.replace(packet, packet[:keep] + bytes(len(packet) - keep), 1)
    return data


def intra() -> bytes:
    recipe = Recipe(tenths(40), "matroska", "mjpeg", pix_fmt="yuvj420p", gop=1, b_frames=0)
    return recipe.make()


def test_a_few_bad_frames_are_left_out() -> None:
    bad = spoiled(intra(), 0.05)
    assert len(container_stamps(bad)) == 40
    totals = []

    def choose(total: int, _: float) -> list[int]:
        totals.append(total)
        return list(range(total))

    found = decode_video(bad, choose, audio_rate=None)
    assert totals == [40, 38]
    assert read_numbers(found.frames) == list(range(38))


def test_many_bad_frames_are_refused() -> None:
    with pytest.raises(MediaError, match="20 of 40 packets could not be decoded, 20 frames could"):
        decode(spoiled(intra(), 0.5))


def test_nothing_but_bad_frames() -> None:
    with pytest.raises(MediaError, match="no frame of the video could be decoded"):
        decode(spoiled(intra(), 1.0))


def test_index_that_promises_more_than_there_is() -> None:
    data = Recipe(tenths(40), options=FAST_START).make()
    at = box(data, b"mdat")
    # The media box is shortened with the file: only the index knows what is missing.
    end = at + (len(data) - at) // 2
    cut = data[:at] + struct.pack(">I", end - at) + data[at + 4 : end]
    assert missing_part(cut) is None
    with pytest.raises(MediaError, match="its index lists 40 frames"):
        scan(cut)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        bytes(4096),
        b"<html><body>404</body></html>" * 20,
        np.random.default_rng(3).bytes(50_000),
        b"\x00\x00\x00\x18ftypmp42" + bytes(400),
        b"\x1a\x45\xdf\xa3" + bytes(50),
        b"\x1a\x45\xdf\xa3",
        b"GIF89a",
    ],
    ids=lambda data: f"{len(data)}-{data[:6].hex()}",
)
def test_garbage(data: bytes) -> None:
    for read in (scan, decode):
        with pytest.raises(MediaError, match=r"cannot be read|no video track|cut short|no frame"):
            read(data)


def test_garbage_inside_a_file_neither_hangs_nor_crashes() -> None:
    random = np.random.default_rng(5)
    whole = noisy("mp4", options=FAST_START)
    for _ in range(40):
        data = bytearray(whole)
        for at in random.integers(0, len(data), 12):
            data[at] = random.integers(256)
        try:
            found = decode(bytes(data))
        except MediaError:
            continue
        assert len(found.frames) == found.total_frames <= 60


def test_tracks_that_appear_while_reading() -> None:
    class Growing:
        """PyAV's container, when FFmpeg has found a track more than it had at the beginning."""

        def demux(self, stream: object) -> Iterator[str]:
            yield from ("packet", "flush")
            raise IndexError("list index out of range")

    assert list(packets(Growing(), None)) == ["packet", "flush"]  # type: ignore[arg-type]


def test_sound_without_pictures() -> None:
    song = sound_file(tone(1, 16_000)[None], 16_000, "mp4", "aac")
    for read in (scan, decode):
        with pytest.raises(MediaError, match="no video track"):
            read(song)


def test_playlists_are_not_followed(tmp_path) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(Recipe(tenths(3)).make())
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n"
    listed = f"ffconcat version 1.0\nfile '{secret}'\n"
    for text in (playlist, listed):
        with pytest.raises(MediaError, match="cannot be read"):
            scan(text.encode())


def test_frames_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Recipe(tenths(2)).make()
    monkeypatch.setattr(video, "MAX_FRAME_PIXELS", 64 * 48 - 1)
    with pytest.raises(MediaError, match="64 x 48 pixels have more than"):
        decode(data)


@pytest.mark.parametrize(
    ("container", "options"),
    [("mp4", FAST_START), ("mp4", FRAGMENTS), ("matroska", None), ("avi", None)],
)
def test_what_is_left_of_a_video_that_is_cut_short_may_be_kept(
    container: str, options: dict | None
) -> None:
    codec = "mpeg4" if container == "avi" else "libx264"
    sound = (tone(6, 16_000), 16_000, 0.0)
    audio_codec = "pcm_s16le" if container == "avi" else "flac"
    data = noisy(container, codec=codec, options=options, audio=sound, audio_codec=audio_codec)
    cut = data[: len(data) * 6 // 10]
    missing = missing_part(cut)
    found = [
        video.decode_video(
            cut,
            lambda total, _: list(range(total)),
            audio_rate=16_000,
            threads=threads,
            keep_truncated=True,
        )
        for threads in (1, 2)
    ]
    for one in found:
        assert one.cut_short == missing is not None
        assert 20 < one.total_frames < 60
        # Of the last group some are lost that would be shown before others, and one is incomplete.
        shown = [round(10 * (time - one.times[0])) for time in one.times]
        assert shown[:-4] == list(range(one.total_frames - 4))
        assert read_numbers(one.frames)[:-1] == shown[:-1]
        assert one.audio is None or len(one.audio) <= 6 * 16_000
    whole = decode_video(data, lambda *_: [3], audio_rate=None, keep_truncated=True)
    assert whole.cut_short is None and whole.total_frames == 60


def test_what_an_index_promises_in_vain_may_be_done_without() -> None:
    data = Recipe(tenths(40), options=FAST_START).make()
    at = box(data, b"mdat")
    end = at + (len(data) - at) // 2
    cut = data[:at] + struct.pack(">I", end - at) + data[at + 4 : end]
    found = decode_video(cut, lambda total, _: [0, total - 3], audio_rate=None, keep_truncated=True)
    assert found.cut_short is not None and "its index lists 40 frames" in found.cut_short
    assert read_numbers(found.frames) == [0, found.total_frames - 3]


def test_nothing_is_left_of_a_video_whose_index_was_at_the_end() -> None:
    data = Recipe(tenths(40)).make()
    with pytest.raises(MediaError, match="cannot be read"):
        scan(data[: len(data) // 2], keep_truncated=True)
