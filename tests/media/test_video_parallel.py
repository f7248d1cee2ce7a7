"""One video by several decoders: the frames are those of a plain decode of the whole file."""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.media.files import Recipe, moving
from tests.media.test_video_times import with_edit
from vllm_mimo.media import video
from vllm_mimo.media.decoders import budget, process, pyav, registry
from vllm_mimo.media.decoders.access import AccessPoints
from vllm_mimo.media.decoders.budget import Budget
from vllm_mimo.media.decoders.index import index_packets
from vllm_mimo.media.decoders.job import Doubt, Job
from vllm_mimo.media.decoders.plan import Part, Wanted, locate, split
from vllm_mimo.media.video import DecodedVideo, decode_video, scan

LENGTH = 240
EVEN = [Fraction(k, 30) for k in range(LENGTH)]
TICK = Fraction(1, 30)
FAST = {"preset": "veryfast"}
X265 = "log-level=error:pools=1:bframes=4:b-pyramid=1"
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof+delay_moov"}


def recipe(codec: str = "libx264", container: str = "mp4", times=EVEN, **fields) -> Recipe:
    fields = {"gop": 30, "b_frames": 3, "size": (96, 64), **fields}
    return Recipe(times, container, codec, ticks=30_000, fps=30, picture=moving, **fields)


def uneven() -> list[Fraction]:
    """Times whose steps are between one and seven sixtieths of a second."""
    steps = [Fraction(1 + k * k % 7, 60) for k in range(120)]
    return list(itertools.accumulate(steps, initial=Fraction(0)))[:-1]


def edited() -> bytes:
    return with_edit(recipe(codec_options=FAST).make(), Fraction(10, 3), Fraction(4))


FILES: dict[str, tuple[Callable[[], bytes], int]] = {
    # A name, how it is made, and the fewest parts that four threads make of it.
    "H.264, one group": (recipe(gop=250, codec_options={**FAST, "sc_threshold": "0"}).make, 1),
    "H.264": (recipe(codec_options=FAST).make, 4),
    "H.264 in Matroska": (recipe("libx264", "matroska", codec_options=FAST).make, 4),
    "H.264, sets in the stream": (
        recipe(codec_options={**FAST, "x264-params": "repeat-headers=1"}).make,
        4,
    ),
    "H.264, open groups": (
        recipe(codec_options={**FAST, "x264-params": "open-gop=1:keyint=30"}).make,
        1,
    ),
    "H.264, refresh": (
        recipe(b_frames=0, codec_options={**FAST, "x264-params": "intra-refresh=1"}).make,
        1,
    ),
    "H.265, open groups": (
        recipe("libx265", codec_options={"preset": "ultrafast", "x265-params": X265}).make,
        4,
    ),
    "H.265, closed groups": (
        recipe(
            "libx265",
            "matroska",
            codec_options={"preset": "ultrafast", "x265-params": X265 + ":open-gop=0"},
        ).make,
        4,
    ),
    "VP9 with hidden pictures": (
        recipe(
            "libvpx-vp9",
            "webm",
            codec_options={"cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "12"},
        ).make,
        4,
    ),
    "AV1": (
        recipe("libsvtav1", b_frames=0, codec_options={"preset": "12"}, times=EVEN[:150]).make,
        3,
    ),
    "MPEG-4 in MP4": (recipe("mpeg4", b_frames=2).make, 4),
    "MPEG-4 in AVI": (recipe("mpeg4", "avi", b_frames=2).make, 1),
    "transport stream": (recipe("libx264", "mpegts").make, 1),
    "raw H.264": (recipe("libx264", "h264").make, 1),
    "fragments": (recipe(options=FRAGMENTS).make, 4),
    "variable rate": (recipe(times=uneven(), codec_options=FAST).make, 4),
    "edit list": (edited, 4),
    "one frame": (recipe(times=EVEN[:1]).make, 1),
    "pictures that stand alone": (
        recipe("mjpeg", "matroska", gop=1, b_frames=0, pix_fmt="yuvj420p", times=EVEN[:40]).make,
        4,
    ),
    "turned": (recipe(rotation=90, codec_options=FAST).make, 4),
}


@cache
def file(name: str) -> bytes:
    return FILES[name][0]()


def truth(data: bytes) -> tuple[list[np.ndarray], list[float]]:
    """All frames that PyAV gives of the whole file, and their times from the first one's, those of
    AVI and raw H.264 by counting (the latter 25 a second, as FFmpeg does).
    """
    frames, times = [], []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        rate = {"avi": 30, "h264": 25}.get(container.format.name)
        for frame in container.decode(stream):
            frames.append(frame.to_ndarray(format="rgb24"))
            times.append(len(times) / rate if rate else float(frame.pts * frame.time_base))
    return frames, [stamp - times[0] for stamp in times]


def every(step: int) -> Callable[[int, float], list[int]]:
    return lambda total, _: list(range(step // 2, total, step)) or [0]


def spread(total: int, _: float) -> list[int]:
    """A few, among them neighbours and the last."""
    return sorted({0, 1, total // 3, total // 3 + 1, total // 2, total - 1} & set(range(total)))


@pytest.mark.parametrize("name", FILES)
def test_frames_and_times_are_those_of_the_whole(name: str) -> None:
    data = file(name)
    frames, times = truth(data)
    if name == "turned":
        frames = [np.rot90(frame) for frame in frames]
    assert len(scan(data).times) == len(frames)
    for choose, all_of_them in ((every(1), True), (every(29), False), (spread, False)):
        for threads in (1, 2, 4):
            found = decode_video(data, choose, audio_rate=None, threads=threads)
            assert found.total_frames == len(frames)
            assert all(
                np.array_equal(picture, frames[index])
                for picture, index in zip(found.frames, found.indices, strict=True)
            ), (threads, found.work)
            expected = np.array([times[i] for i in found.indices])
            assert np.abs(np.array(found.times) - found.times[0] - expected + expected[0]).max() < (
                1e-6
            )
            if found.work.backend != "in order":
                assert 0 < found.work.decoded <= found.work.planned
            assert found.work.parts <= threads
            if threads == 4 and all_of_them:
                assert found.work.parts >= FILES[name][1]


def test_groups_without_wanted_frames_are_not_decoded() -> None:
    data = file("H.264 in Matroska")
    found = decode_video(data, lambda *_: [3, 200], audio_rate=None, threads=1)
    assert found.work.backend == "pyav"
    assert found.work.decoded < 40


@pytest.mark.parametrize(("codec", "skips"), [("H.264", True), ("H.265, open groups", True)])
def test_pictures_that_none_refers_to_are_not_decoded(codec: str, skips: bool) -> None:
    found = decode_video(file(codec), every(29), audio_rate=None, threads=1)
    assert (found.work.decoded < 0.8 * found.work.planned) is skips


def test_pictures_of_vp9_and_av1_are_never_skipped() -> None:
    for name in ("VP9 with hidden pictures", "AV1"):
        found = decode_video(file(name), every(29), audio_rate=None, threads=2)
        assert found.work.decoded == found.work.planned


def test_a_decoder_that_doubts_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubting(job: Job) -> int:
        for wanted in job.part.wanted:
            job.put(wanted.place, np.zeros((64, 96, 3), np.uint8))
        raise Doubt("the frames are black")

    monkeypatch.setattr(pyav, "decode", doubting)
    frames, _ = truth(file("H.264"))
    found = decode_video(file("H.264"), every(29), audio_rate=None, threads=2)
    assert found.work.backend == "in order"
    assert all(
        np.array_equal(f, frames[i]) for f, i in zip(found.frames, found.indices, strict=True)
    )


def test_damage_is_decided_on_in_order_whatever_the_number_of_threads() -> None:
    """A few bytes of one packet are spoiled: what FFmpeg makes up for is the same for all."""
    data = file("H.264 in Matroska")
    with av.open(io.BytesIO(data)) as container:
        packet = [bytes(p) for p in container.demux(video=0) if p.size][95]
    spoiled = data.replace(packet, packet[:40] + bytes(len(packet) - 40), 1)
    results = [
        decode_video(spoiled, every(10), audio_rate=None, threads=threads) for threads in (1, 2, 4)
    ]
    assert {found.work.backend for found in results} == {"in order"}
    for found in results[1:]:
        assert found.times == results[0].times


def test_pictures_are_made_smaller_as_they_come() -> None:
    def smaller(picture: np.ndarray) -> np.ndarray:
        return picture[::4, ::4].astype(np.float32)

    whole = decode_video(file("H.264"), every(7), audio_rate=None, threads=4).frames
    for name, threads in (("H.264", 4), ("transport stream", 1)):
        found = decode_video(
            file(name), every(7), audio_rate=None, threads=threads, transform=smaller
        )
        assert found.frames.dtype == np.float32
        assert found.frames.shape == (len(found.indices), 16, 24, 3)
        if name == "H.264":
            assert np.array_equal(found.frames, whole[:, ::4, ::4])


def test_an_error_of_the_transform_is_its_callers() -> None:
    def fails(picture: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        decode_video(file("H.264"), every(7), audio_rate=None, threads=4, transform=fails)


# Plans.


@st.composite
def works(draw) -> tuple[list[Wanted], int]:
    """Wanted frames of a video of up to 60 packets, and a number of parts."""
    begins = sorted({0, *draw(st.sets(st.integers(1, 59), max_size=6))})
    packets = sorted(draw(st.sets(st.integers(0, 59), min_size=1, max_size=8)))
    index = index_packets(
        list(range(60)), list(range(60)), begins, TICK, leading=False, seek_by_pts=False
    )
    assert index is not None
    return locate(index, packets, packets), draw(st.integers(1, 5))


def cost(wanted: tuple[Wanted, ...]) -> int:
    return len({n for frame in wanted for n in range(frame.begin, frame.packet + 1)})


@given(works())
def test_the_largest_part_is_as_small_as_can_be(work: tuple[list[Wanted], int]) -> None:
    wanted, most = work
    parts = split(wanted, most)
    assert [frame for part in parts for frame in part.wanted] == wanted
    assert len(parts) <= most
    assert all(part.cost == cost(part.wanted) for part in parts)
    best = min(
        max(cost(tuple(wanted[a:b])) for a, b in itertools.pairwise((0, *inner, len(wanted))))
        for count in range(min(most, len(wanted)))
        for inner in itertools.combinations(range(1, len(wanted)), count)
    )
    assert max(part.cost for part in parts) == best


def test_a_cut_at_a_keyframe_is_preferred_to_an_equal_one_within_a_group() -> None:
    wanted = [Wanted(k, k, k, k // 10 * 10) for k in range(5, 40, 10)]
    assert [part.runs for part in split(wanted, 2)] == [
        ((0, 5), (10, 15)),
        ((20, 25), (30, 35)),
    ]
    assert split([], 2) == [Part((), ())]


def test_frames_shown_before_the_picture_they_follow_begin_earlier() -> None:
    # Stored 0 3 1 2 | 6 4 5 7: 4 and 5 may refer to 3.
    stamps = [0, 3, 1, 2, 6, 4, 5, 7]
    index = index_packets(stamps, list(range(8)), [0, 4], TICK, leading=True, seek_by_pts=False)
    assert index is not None and index.begins == (0, 4)
    begins = {frame.packet: frame.begin for frame in locate(index, range(8), range(8))}
    assert begins == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 4}
    closed = index_packets(stamps, list(range(8)), [0, 4], TICK, leading=False, seek_by_pts=False)
    assert closed is not None and closed.begins == (0,)


@pytest.mark.parametrize(
    ("pts", "dts"),
    [([0, 1, 1], [0, 1, 2]), ([0, 1, 2], [0, 2, 1]), ([0, 1, 2], [0, None, 2]), ([], [])],
)
def test_packets_that_cannot_be_found_again_have_no_index(pts: list, dts: list) -> None:
    assert index_packets(pts, dts, [0], TICK, leading=False, seek_by_pts=False) is None


def units(*heads: int, codec: str = "h264") -> memoryview:
    """NAL units of five bytes with these first bytes, their sizes in two bytes."""
    return memoryview(b"".join(bytes([0, 5, head, 0, 0, 0, 0]) for head in heads))


def test_keyframes_are_looked_at() -> None:
    def h264(*packets: memoryview) -> list[bool]:
        access = AccessPoints("h264", 2)
        return [access.begins(packet) for packet in packets]

    idr, plain, sets = 0x65, 0x41, 0x67
    assert h264(units(6, idr), units(6, plain), units(), units(9)) == [True, False, False, False]
    # Sets that came in the stream must come again where decoding is to begin.
    assert h264(units(sets, idr), units(idr), units(sets, 0x68, idr)) == [True, False, True]
    hevc = AccessPoints("hevc", 2)
    assert [hevc.begins(units(kind << 1)) for kind in (1, 15, 16, 19, 21, 22)] == [
        *(False, False, True, True, True, False)
    ]
    assert not AccessPoints("h264", 0).begins(units(idr))  # without sizes of units
    assert AccessPoints.of("h264", bytes([1, *bytes(3), 0xFD])).length_size == 2
    assert AccessPoints.of("h264", b"\0\0\0\1\x67\x42").length_size == 0
    assert AccessPoints.of("hevc", bytes([1, *bytes(20), 0xFF])).length_size == 4
    vp9 = AccessPoints("vp9", 0)
    assert [vp9.begins(memoryview(bytes([b]))) for b in (0x82, 0x86, 0x8A, 0x02)] == [
        *(True, False, False, False)
    ]


# The budget.


class Watched:
    """A decoder that counts how many of it run at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, job: Job) -> int:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return self.decode(job)
        finally:
            with self.lock:
                self.now -= 1

    decode = staticmethod(pyav.decode)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Budget:
    made = Budget(2)
    monkeypatch.setattr(process, "_current", process.Decoding("pyav", made))
    return made


@pytest.mark.parametrize("threads", [0, 4])
def test_videos_decoded_at_once_keep_to_the_budget(
    two_threads: Budget, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    watched = Watched()
    monkeypatch.setattr(pyav, "decode", watched)
    names = ["H.264", "H.264 in Matroska", "VP9 with hidden pictures", "fragments"] * 2
    expected = {name: truth(file(name))[0] for name in set(names)}

    def one(name: str) -> DecodedVideo:
        return decode_video(file(name), every(7), audio_rate=None, threads=threads)

    with ThreadPoolExecutor(len(names)) as pool:
        for name, found in zip(names, pool.map(one, names), strict=True):
            assert all(
                np.array_equal(picture, expected[name][index])
                for picture, index in zip(found.frames, found.indices, strict=True)
            )
    assert 1 <= watched.most <= 2
    assert (two_threads.running, two_threads.videos) == (0, 0)


def test_a_share_is_smaller_with_more_videos() -> None:
    made = Budget(8)
    with made.video() as one:
        assert one.threads() == 8
        with made.video() as two, made.video():
            assert two.threads() == one.threads() == 2
            with one.take(8) as got:
                assert got == 2
        with one.take(3) as got:
            assert got == 3
    with pytest.raises(ValueError, match="at least one"):
        Budget(0)


def test_a_video_that_uses_less_goes_first() -> None:
    made = Budget(2)
    order: list[str] = []
    with made.video() as long, made.video() as short:
        first, second = long.take(), long.take()
        first.__enter__()
        second.__enter__()

        def wait(share: budget.Share, name: str) -> None:
            with share.take():
                order.append(name)

        threads = []
        for share, name in ((long, "long"), (short, "short")):
            threads.append(threading.Thread(target=wait, args=(share, name)))
            threads[-1].start()
            while len(made._waiting) < len(threads):
                time.sleep(0.001)
        first.__exit__(None, None, None)
        threads[1].join(10)
        threads[0].join(10)
        second.__exit__(None, None, None)
    assert order == ["short", "long"]
    assert made.running == 0


def test_files_decoded_in_order_take_what_is_free(two_threads: Budget) -> None:
    found = decode_video(file("transport stream"), every(7), audio_rate=None)
    assert found.work.backend == "in order"
    assert two_threads.running == 0


def test_a_budget_outlives_a_failure(two_threads: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(job: Job) -> int:
        raise MemoryError

    monkeypatch.setattr(pyav, "decode", fails)
    with pytest.raises(MemoryError):
        decode_video(file("H.264"), every(7), audio_rate=None, threads=4)
    assert (two_threads.running, two_threads.videos) == (0, 0)


def test_the_process_has_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_current", None)
    first = process.process_decoding()
    assert first.backend == "pyav"
    assert first.budget.threads == budget.usable_cores()
    assert process.set_decoding("pyav", None).budget is first.budget
    assert process.set_decoding("pyav", first.budget.threads + 1).budget is not first.budget
    assert process.process_decoding().budget.threads == first.budget.threads + 1


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown video decoder 'vlc'; choose one of pyav"):
        registry.decoder("vlc")
    with pytest.raises(ValueError, match="unknown video decoder"):
        decode_video(file("H.264"), every(7), audio_rate=None, backend="vlc")


def test_frames_too_large_are_refused_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(video, "MAX_FRAME_PIXELS", 10)
    with pytest.raises(ValueError, match="96 x 64 pixels have more than 10"):
        decode_video(file("H.264"), every(7), audio_rate=None)
