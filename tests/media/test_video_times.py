"""Which frames a video shows and when, for files whose content and times are known."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest

from tests.media.files import (
    Recipe,
    box,
    container_stamps,
    numbered,
    read_numbers,
    settings,
    tenths,
    tone,
)
from vllm_mimo.media import timeline
from vllm_mimo.media.sampling import frame_indices
from vllm_mimo.media.video import DecodedVideo, decode_video, scan

UNEVEN = [Fraction(ms, 1000) for ms in (0, 100, 350, 400, 1000, 1500, 3000, 3001)]


def decode_all(data: bytes, **kwargs) -> DecodedVideo:
    return decode_video(data, lambda total, _: list(range(total)), audio_rate=None, **kwargs)


def check(data: bytes, times: list[Fraction], numbers: list[int] | None = None) -> DecodedVideo:
    """Scan and decode, both ways of scanning, and compare with what is known."""
    for look in (scan(data), scan(data, by_decoding=True)):
        assert len(look.times) == len(times)
        assert np.abs(np.array(look.times) - np.array(times, float)).max() < 1e-6
    video = decode_all(data)
    assert video.times == look.times
    assert read_numbers(video.frames) == (numbers or list(range(len(times))))
    return video


CONTAINERS = [
    ("mp4", "libx264"),
    ("mp4", "libx265"),
    ("mp4", "mpeg4"),
    ("mov", "libx264"),
    ("matroska", "libx264"),
    ("webm", "libvpx"),
    ("webm", "libvpx-vp9"),
    ("matroska", "ffv1"),
    ("avi", "mpeg4"),
    ("avi", "libx264"),
    ("mpegts", "libx264"),
    ("mpeg", "mpeg2video"),
    ("ivf", "libvpx-vp9"),
    ("flv", "libx264"),
    ("h264", "libx264"),
]


@pytest.mark.parametrize(("container", "codec"), CONTAINERS)
def test_constant_rate(container: str, codec: str) -> None:
    size = (64, 64) if codec == "libx265" else (64, 48)
    # FLV's stamps begin with the delay of B frames; `test_times_are_the_containers` has those.
    b_frames = 0 if container == "flv" else 2
    recipe = Recipe(tenths(25), container, codec, size, ticks=10, b_frames=b_frames)
    video = check(recipe.make(), tenths(25))
    assert video.total_frames == 25
    assert video.average_fps == 10.0
    assert video.duration == pytest.approx(2.5, abs=1e-3)
    assert video.end == pytest.approx(2.5)


def test_times_are_the_containers() -> None:
    # Two B frames delay the first picture by two, and neither file has an edit list to take it off.
    fragments = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    for recipe in (Recipe(tenths(25), "flv"), Recipe(tenths(25), options=fragments)):
        data = recipe.make()
        video = check(data, tenths(25, 0.2))
        assert video.times == tuple(float(stamp) for stamp in container_stamps(data))
        assert video.duration == pytest.approx(2.5)


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("b_frames", [0, 2])
def test_variable_rate(container: str, b_frames: int) -> None:
    data = Recipe(UNEVEN, container, b_frames=b_frames).make()
    video = check(data, UNEVEN)
    stamps = container_stamps(data)
    assert np.allclose(np.array(video.times), np.array([s - stamps[0] for s in stamps], float))
    assert video.average_fps == pytest.approx(8 / video.duration)


def test_ntsc_rate_is_exact() -> None:
    rate = Fraction(30_000, 1001)
    data = Recipe([k / rate for k in range(30)], ticks=30_000, fps=rate).make()
    video = check(data, [k / rate for k in range(30)])
    assert video.average_fps == 30_000 / 1001


def test_milliseconds_do_not_spoil_the_rate() -> None:
    # Matroska rounds a thirtieth of a second to 33, 67 and 100 ms.
    data = Recipe([Fraction(k, 30) for k in range(60)], "matroska", ticks=30, fps=30).make()
    assert scan(data).average_fps == 30.0


def with_edit(data: bytes, start: Fraction, length: Fraction) -> bytes:
    """Make the MP4's only edit show `length` seconds from `start` after its first frame."""
    at, header = box(data, b"elst"), box(data, b"mdhd")
    count, _, first = struct.unpack(">IIi", data[at + 12 : at + 24])
    assert count == 1
    movie = struct.unpack(">I", data[(mvhd := box(data, b"mvhd")) + 20 : mvhd + 24])[0]
    media = struct.unpack(">I", data[header + 20 : header + 24])[0]
    edit = struct.pack(">Ii", round(length * movie), first + round(start * media))
    return data[: at + 16] + edit + data[at + 24 :]


@pytest.mark.parametrize("first", [3, 7, 12, 17])
@pytest.mark.parametrize("b_frames", [0, 2])
def test_edit_list_that_cuts_between_keyframes(first: int, b_frames: int) -> None:
    data = Recipe(tenths(30), ticks=10, gop=12, b_frames=b_frames).make()
    cut = with_edit(data, Fraction(first, 10), Fraction(1))
    check(cut, tenths(10), list(range(first, first + 10)))
    assert [float(s) for s in container_stamps(cut)] == [k / 10 for k in range(10)]


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_pictures_that_begin_after_the_sound(container: str) -> None:
    sound = (tone(3, 16_000), 16_000, 0.0)
    video = check(Recipe(tenths(10, 2), container, audio=sound).make(), tenths(10, 2))
    assert video.end == pytest.approx(3.0)


def test_transport_stream_begins_at_its_first_stamp() -> None:
    # FFmpeg's muxer starts the sound 64 ms early (AAC's priming), and the clock with it.
    sound = (tone(2, 48_000), 48_000, 0.064)
    data = Recipe(tenths(10, 1), "mpegts", audio=sound, audio_codec="aac").make()
    video = check(data, [t - Fraction(64, 1000) + Fraction(1024, 48_000) for t in tenths(10, 1)])
    assert video.times[0] > 0.9


def test_transport_streams_joined_at_the_ends() -> None:
    # The second recording's clock starts again; FFmpeg's own stamps go back there.
    one = Recipe(tenths(10), "mpegts").make()
    check(one + one, tenths(20), [*range(10), *range(10)])


def test_transport_stream_cut_in_the_middle_of_a_group() -> None:
    data = Recipe(tenths(30), "mpegts", gop=12, b_frames=0).make()
    packets = [data[i : i + 188] for i in range(0, len(data), 188)]
    cut = b"".join([*packets[:2], *packets[8:]])
    look = scan(cut)
    video = decode_all(cut)
    assert read_numbers(video.frames) == list(range(12, 30))
    assert np.allclose(np.diff(look.times), 0.1)


HIDDEN = (5, 11, 12)


def with_hidden_pictures() -> bytes:
    """A VP8 file of 30 packets, of which three are like its alternate references: not shown."""
    data = Recipe(tenths(30), "matroska", "libvpx", gop=30).make()
    with av.open(io.BytesIO(data)) as file:
        packets = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    for number in HIDDEN:
        at = data.index(packets[number])
        # RFC 6386, 9.1: bit 4 of the frame tag says whether the frame is shown.
        data = data[:at] + bytes([data[at] & ~0x10]) + data[at + 1 :]
    return data


def test_hidden_pictures_are_not_frames() -> None:
    data = with_hidden_pictures()
    assert len(container_stamps(data)) == 30
    numbers = [k for k in range(30) if k not in HIDDEN]
    check(data, [Fraction(k, 10) for k in numbers], numbers)


def test_fragmented_file() -> None:
    movflags = {"movflags": "frag_keyframe+empty_moov+default_base_moof+delay_moov"}
    check(Recipe(tenths(30), options=movflags).make(), tenths(30))


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "avi"])
def test_one_frame(container: str) -> None:
    codec = "mpeg4" if container == "avi" else "libx264"
    video = check(Recipe(tenths(1), container, codec).make(), tenths(1))
    assert (video.total_frames, video.times, video.end) == (1, (0.0,), 1.0)
    vision = settings().vision
    assert frame_indices(video.total_frames, video.average_fps, vision) == [0]


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
def test_rotation(degrees: int) -> None:
    data = Recipe(tenths(3), size=(64, 48), rotation=degrees).make()
    look, video = scan(data), decode_all(data)
    upright = np.rot90(video.frames, -degrees // 90, axes=(1, 2))
    assert read_numbers(upright) == [0, 1, 2]
    assert video.frames.shape[1:3] == (look.height, look.width)
    assert look.rotation % 360 == degrees % 360


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        # ISO/IEC 14496-12, 6.2.2: x' = a x + c y + e, y' = b x + d y + f; (a, b, c, d).
        ((1, 0, 0, 1), lambda p: p),
        ((0, 1, -1, 0), lambda p: np.rot90(p, -1)),  # a phone held upright
        ((-1, 0, 0, -1), lambda p: np.rot90(p, 2)),
        ((0, -1, 1, 0), lambda p: np.rot90(p, 1)),
        ((-1, 0, 0, 1), lambda p: p[:, ::-1]),  # mirrored, as some front cameras do
        ((1, 0, 0, -1), lambda p: p[::-1]),
        ((0, 1, 1, 0), lambda p: p.transpose(1, 0, 2)),
    ],
)
def test_display_matrix(
    matrix: tuple[int, int, int, int], expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    data = Recipe(tenths(2), size=(64, 48)).make()
    plain = decode_all(data).frames[1]
    at = box(data, b"tkhd") + 48
    a, b, c, d = (value << 16 for value in matrix)
    turned = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    found = decode_all(data[:at] + turned + data[at + 36 :]).frames[1]
    assert np.array_equal(found, expected(plain))


@pytest.mark.parametrize("size", [(63, 47), (1, 1), (9, 33), (65, 2)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    data = Recipe(tenths(3), "matroska", "ffv1", size, pix_fmt="bgr0").make()
    look = scan(data)
    assert (look.width, look.height) == size
    frames = decode_all(data).frames
    assert np.array_equal(frames, np.stack([numbered(k, *size) for k in range(3)]))


def test_odd_size_with_shared_colours() -> None:
    frames = decode_all(Recipe(tenths(3), codec="mpeg4", size=(63, 47)).make()).frames
    assert frames.shape == (3, 47, 63, 3)
    assert read_numbers(frames) == [0, 1, 2]


def test_size_that_changes_is_scaled_to_the_first() -> None:
    small = Recipe(tenths(5), "mpegts", size=(64, 48)).make()
    large = Recipe(tenths(5), "mpegts", size=(128, 96)).make()
    video = decode_all(small + large)
    assert video.frames.shape == (10, 48, 64, 3)
    assert read_numbers(video.frames) == [*range(5), *range(5)]


def test_only_chosen_frames_come_back() -> None:
    data = Recipe(tenths(100), ticks=10).make()
    asked = []

    def choose(total: int, rate: float) -> list[int]:
        asked.append((total, rate))
        return frame_indices(total, rate, replace(settings().vision, min_frames=2, fps=1.0))

    video = decode_video(data, choose, audio_rate=None, threads=1)
    assert asked == [(100, 10.0)]
    assert list(video.indices) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert read_numbers(video.frames) == list(video.indices)
    assert video.times == tuple(k / 10 for k in video.indices)
    assert video.end == pytest.approx(9.9 + 1.1)


@pytest.mark.parametrize("indices", [[], [1, 0], [0, 0], [-1], [10], [0, 99]])
def test_indices_that_cannot_be_are_a_mistake(indices: list[int]) -> None:
    data = Recipe(tenths(10)).make()
    with pytest.raises(ValueError, match="ascending indices below 10"):
        decode_video(data, lambda *_: indices, audio_rate=None)


def test_packets_that_are_not_frames_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Take VP8's packets for frames: decoding shows otherwise, and the timeline is read again.
    monkeypatch.setattr(timeline, "STAMPED_CODECS", ("vp8",))
    totals = []

    def choose(total: int, _: float) -> list[int]:
        totals.append(total)
        return list(range(total))

    video = decode_video(with_hidden_pictures(), choose, audio_rate=None)
    assert totals == [30, 27]
    assert read_numbers(video.frames) == [k for k in range(30) if k not in HIDDEN]
