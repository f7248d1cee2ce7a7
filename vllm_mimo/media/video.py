"""Decoding chosen frames of a video, with their times and the sound.

Frames come one by one out of FFmpeg and only the chosen ones are kept, so that the memory is that
of the result. How many frames there are has to be known before they are chosen: by `timeline.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideData, Type

from vllm_mimo.media.container import open_media
from vllm_mimo.media.layout import end_of
from vllm_mimo.media.settings import MediaError
from vllm_mimo.media.sound import on_timeline, read_runs
from vllm_mimo.media.timeline import HELP, Timeline, scan, shown_frames, video_stream

__all__ = ["DecodedVideo", "Timeline", "decode_video", "scan"]

MAX_FRAME_PIXELS = 1 << 26
"""Larger frames are refused: 67 million pixels, twice 8K."""

Choose = Callable[[int, float], list[int]]
"""From the number of frames and their average rate to the indices wanted, ascending."""


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """The chosen frames of a video and its sound."""

    frames: np.ndarray
    """uint8 (frames, height, width, 3), RGB."""
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


def decode_video(
    data: bytes, choose: Choose, *, audio_rate: int | None, threads: int = 0
) -> DecodedVideo:
    """Decode the frames that `choose` names.

    Frames are turned as the file says; those of another size than the first one are scaled to it.

    Args:
        data: the file's content.
        choose: called with the number of frames and their average rate. It may be called twice: if
            decoding shows that the packets were not frames one to one.
        audio_rate: Hz, or None to leave the sound out.
        threads: of FFmpeg's decoder, 0 for as many as there are cores.

    Raises MediaError for a file without video, cut short, damaged, or with frames too large.
    """
    timeline = scan(data, threads=threads)
    decoded = _decode(data, timeline, choose, threads)
    if decoded is None:
        timeline = scan(data, by_decoding=True, threads=threads)
        decoded = _decode(data, timeline, choose, threads)
    if decoded is None:
        raise MediaError(f"the video decodes differently each time, as damaged ones do; {HELP}")
    frames, indices = decoded
    times = tuple(timeline.times[i] for i in indices)
    audio = None
    if audio_rate is not None and timeline.has_audio:
        with open_media(data) as container:
            audio = on_timeline(read_runs(container, timeline.clock(), threads), audio_rate)
    return DecodedVideo(
        frames=frames,
        times=times,
        indices=tuple(indices),
        total_frames=len(timeline.times),
        average_fps=timeline.average_fps,
        duration=timeline.duration,
        end=end_of(times),
        audio=audio,
    )


def _decode(
    data: bytes, timeline: Timeline, choose: Choose, threads: int
) -> tuple[np.ndarray, list[int]] | None:
    """Chosen frames and their indices, or None if the frames are not those of the timeline."""
    total = len(timeline.times)
    indices = choose(total, timeline.average_fps)
    if not indices or indices != sorted(set(indices)) or not 0 <= indices[0] <= indices[-1] < total:
        raise ValueError(f"choose() must give ascending indices below {total}, not {indices}")
    places = {index: place for place, index in enumerate(indices)}
    frames = None
    with open_media(data) as container:
        stream = video_stream(container)
        size, matrix = (0, 0), None
        for index, shown in enumerate(shown_frames(container, stream, timeline.clock(), threads)):
            if index >= total or float(shown.time) != timeline.times[index]:
                return None
            if index == 0:
                size, matrix = (shown.frame.width, shown.frame.height), _matrix(shown.frame)
                _check_size(*size)
            if index not in places:
                continue
            picture = _turn(_rgb(shown.frame, *size), matrix)
            if frames is None:
                frames = np.empty((len(indices), *picture.shape), np.uint8)
            frames[places[index]] = picture
            if index == indices[-1]:
                return frames, indices
    return None


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_FRAME_PIXELS:
        raise MediaError(
            f"the video's frames of {width} x {height} pixels have more than {MAX_FRAME_PIXELS}; "
            "scale it down"
        )


def _rgb(frame: av.VideoFrame, width: int, height: int) -> np.ndarray:
    """uint8 (height, width, 3), by FFmpeg's swscale."""
    if (frame.width, frame.height) != (width, height):
        frame = frame.reformat(width=width, height=height, format="rgb24")
    return frame.to_ndarray(format="rgb24")


def _matrix(frame: av.VideoFrame) -> np.ndarray | None:
    """FFmpeg's display matrix: columns 0 and 1 take (x, y) of a stored pixel to the shown one's."""
    for side_data in cast(Iterable[SideData], frame.side_data):
        if side_data.type is Type.DISPLAYMATRIX:
            return np.frombuffer(bytes(side_data), np.int32).reshape(3, 3).astype(np.int64)
    return None


def _turn(picture: np.ndarray, matrix: np.ndarray | None) -> np.ndarray:
    """Turn by quarters and mirror, as the matrix says (to the nearest quarter)."""
    if matrix is None:
        return picture
    (a, b), (c, d) = matrix[0, :2], matrix[1, :2]
    if abs(b) > abs(a):
        picture, across, down = picture.transpose(1, 0, 2), c, b
    else:
        across, down = a, d
    return picture[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1]
