"""Decoding chosen frames of a video, with their times and the sound.

How many frames there are has to be known before they are chosen: by `timeline.scan`. Where its
packets tell where decoding may begin, several decoders share the work (`decoders/`); a file of
which that cannot be said, or whose parts are not what the scan promised, is decoded in order. Only
the chosen frames are kept, so that the memory is that of the result and of the decoders.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from vllm_mimo.media.container import open_media
from vllm_mimo.media.decoders.budget import Share
from vllm_mimo.media.decoders.job import Doubt, Job
from vllm_mimo.media.decoders.plan import locate, split
from vllm_mimo.media.decoders.process import process_decoding
from vllm_mimo.media.decoders.registry import decoder
from vllm_mimo.media.decoders.run import run
from vllm_mimo.media.layout import end_of
from vllm_mimo.media.settings import MediaError
from vllm_mimo.media.sound import on_timeline, read_runs
from vllm_mimo.media.timeline import HELP, Timeline, scan, shown_frames, video_stream

__all__ = ["DecodedVideo", "Timeline", "Work", "decode_video", "scan"]

logger = logging.getLogger("vllm.vllm_mimo")

MAX_FRAME_PIXELS = 1 << 26
"""Larger frames are refused: 67 million pixels, twice 8K."""

Choose = Callable[[int, float], list[int]]
"""From the number of frames and their average rate to the indices wanted, ascending."""

Transform = Callable[[np.ndarray], np.ndarray]
"""From a picture, uint8 (height, width, 3), to what is kept of it; the same shape and dtype for all
of a video. Called in several threads at once."""


@dataclass(frozen=True, slots=True)
class Work:
    """How a video's frames were decoded."""

    backend: str
    """Name of the decoder; "in order" where the whole had to be decoded up to the last frame."""
    parts: int
    planned: int
    """Most frames that the plan had to decode; 0 in order."""
    decoded: int
    """Frames that were; 0 if the decoder cannot tell."""


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """The chosen frames of a video and its sound."""

    frames: np.ndarray
    """uint8 (frames, height, width, 3), RGB; or what the transform makes of each."""
    times: tuple[float, ...]
    """Seconds at which each is shown."""
    indices: tuple[int, ...]
    """Of each among the video's frames."""
    total_frames: int
    average_fps: float
    duration: float
    """Seconds from the first frame's beginning to the last one's end, of the whole video."""
    end: float
    """Seconds at which the last chosen frame ends, by the reference's rule (`layout.end_of`)."""
    audio: np.ndarray | None
    """float32 (samples,), mono, at the rate asked for; its first sample is at second 0."""
    cut_short: str | None
    """What the file announces beyond its end, in words; None for a whole file."""
    work: Work


def decode_video(
    data: bytes,
    choose: Choose,
    *,
    audio_rate: int | None,
    threads: int = 0,
    backend: str | None = None,
    transform: Transform | None = None,
    keep_truncated: bool | None = None,
) -> DecodedVideo:
    """Decode the frames that `choose` names.

    Frames are turned as the file says; those of another size than the first one are scaled to it.
    They are the same whatever the number of threads.

    Args:
        data: the file's content.
        choose: called with the number of frames and their average rate. It may be called twice: if
            decoding shows that the packets were not frames one to one.
        audio_rate: Hz, or None to leave the sound out.
        threads: parts to decode at a time, as far as the process's budget allows; 0 for a fair
            share of the budget.
        backend: name of a decoder (`decoders.registry`); None for the process's.
        transform: makes something else of each frame as it comes, such as a smaller picture.
        keep_truncated: whether of a file that is cut short the rest is decoded; None for what the
            process does.

    Raises MediaError for a file without video, cut short, damaged, or with frames too large, and
    ValueError or ImportError for a backend that does not exist or is not installed.
    """
    decoding = process_decoding()
    names = dict.fromkeys((backend or decoding.backend, "pyav"))
    decoder(next(iter(names)))  # says now if it is missing
    keep = decoding.keep_truncated if keep_truncated is None else keep_truncated
    with decoding.budget.video() as share:
        take = partial(share.take, threads or decoding.budget.threads)
        work = None
        for by_decoding in (False, True):
            timeline = scan(data, by_decoding, take, keep)
            indices = _chosen(timeline, choose)
            kept = _Kept(len(indices), transform)
            work = _apart(data, timeline, indices, kept, share, threads, tuple(names))
            work = work or _in_order(data, timeline, indices, kept, take)
            if work is not None:
                break
        if work is None:
            raise MediaError(f"the video decodes differently each time, as damaged ones do; {HELP}")
        audio = None
        if audio_rate is not None and timeline.has_audio:
            with suppress(*(MediaError,) if timeline.cut_short else ()), open_media(data) as opened:
                audio = on_timeline(read_runs(opened, timeline.clock()), audio_rate)
    times = tuple(timeline.times[i] for i in indices)
    return DecodedVideo(
        frames=kept.all(),
        times=times,
        indices=tuple(indices),
        total_frames=len(timeline.times),
        average_fps=timeline.average_fps,
        duration=timeline.duration,
        end=end_of(times),
        audio=audio,
        cut_short=timeline.cut_short,
        work=work,
    )


@dataclass
class _Kept:
    """The result, which grows no further than its size."""

    count: int
    transform: Transform | None
    frames: np.ndarray | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, place: int, picture: np.ndarray) -> None:
        """Keep a picture, or what the transform makes of it."""
        if self.transform is not None:
            picture = self.transform(picture)
        with self.lock:
            if self.frames is None:
                self.frames = np.empty((self.count, *picture.shape), picture.dtype)
        self.frames[place] = picture

    def all(self) -> np.ndarray:
        assert self.frames is not None
        return self.frames


def _chosen(timeline: Timeline, choose: Choose) -> list[int]:
    total = len(timeline.times)
    indices = choose(total, timeline.average_fps)
    if not indices or indices != sorted(set(indices)) or not 0 <= indices[0] <= indices[-1] < total:
        raise ValueError(f"choose() must give ascending indices below {total}, not {indices}")
    width, height = timeline.look.width, timeline.look.height
    if width * height > MAX_FRAME_PIXELS:
        raise MediaError(
            f"the video's frames of {width} x {height} pixels have more than {MAX_FRAME_PIXELS}; "
            "scale it down"
        )
    return indices


def _apart(
    data: bytes,
    timeline: Timeline,
    indices: list[int],
    kept: _Kept,
    share: Share,
    threads: int,
    backends: tuple[str, ...],
) -> Work | None:
    """Decode by parts, with the first backend that does not doubt; None if all do."""
    packets = timeline.packets
    if packets is None:
        return None
    wanted = locate(packets, indices, [timeline.stamps[i] for i in indices])
    parts = split(wanted, threads or share.threads())
    planned = sum(part.cost for part in parts)
    for name in backends:
        stop = threading.Event()
        jobs = [
            Job(data, packets, part, len(timeline.times), timeline.look, kept.put, stop)
            for part in parts
        ]
        try:
            return Work(name, len(parts), planned, run(decoder(name), jobs, share))
        except Doubt as doubt:
            logger.debug("video decoder %s: %s; decoding by a surer way", name, doubt)
    return None


def _in_order(
    data: bytes,
    timeline: Timeline,
    indices: list[int],
    kept: _Kept,
    take: Callable[[], AbstractContextManager[int]],
) -> Work | None:
    """Decode up to the last frame; None if the frames are not those of the timeline."""
    total = len(timeline.times)
    places = {index: place for place, index in enumerate(indices)}
    with take() as threads, open_media(data) as container:
        frames = shown_frames(container, video_stream(container), timeline.clock(), threads)
        for index, shown in enumerate(frames):
            if index >= total or float(shown.time) != timeline.times[index]:
                return None
            if index in places:
                kept.put(places[index], timeline.look.picture(shown.frame))
            if index == indices[-1]:
                return Work("in order", 1, 0, index + 1)
    return None
