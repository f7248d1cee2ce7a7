"""Which frames of a video the model sees, and how many pixels each may have.

Source: `smart_nframes` and the video resizing of SGLang's MiMo-V2 processor, whose sampling is that
of Qwen-VL. Where that one refuses a video of one frame, the frame is taken here.
"""

from __future__ import annotations

import math

import numpy as np

from vllm_mimo.media.settings import MediaError, VisionSettings

MULTIPLE = 2
"""The reference takes a multiple of this many frames, whatever the temporal patch."""


def frame_indices(
    total_frames: int,
    average_fps: float,
    settings: VisionSettings,
    *,
    fps: float | None = None,
    num_frames: int | None = None,
    max_frames: int | None = None,
) -> list[int]:
    """Indices of the frames to take, ascending and without repetition; at least one.

    They are spread evenly from the first frame to the last. A request's `num_frames` or `fps` goes
    before the checkpoint's, of which `num_frames` goes first.

    Args:
        total_frames: frames of the video.
        average_fps: its frames per second.
        settings: the checkpoint's rule.
        fps: frames to take per second of video.
        num_frames: frames to take, rounded to a multiple of two. Not together with `fps`.
        max_frames: the most to take, rounded down to a multiple of two (but 1 is 1).

    Raises MediaError for a video without frames or without a rate, and for overrides that are not
    positive or exclude each other.
    """
    if total_frames < 1:
        raise MediaError(f"the video has {total_frames} frames; send one with at least one frame")
    if not (math.isfinite(average_fps) and average_fps > 0):
        raise MediaError(
            f"the video's frame rate is {average_fps}; send one whose frames have different times"
        )
    _check("fps", fps)
    _check("num_frames", num_frames, whole=True)
    _check("max_frames", max_frames, whole=True)
    if fps is not None and num_frames is not None:
        raise MediaError("fps and num_frames exclude each other; give one of them")
    if fps is None and num_frames is None:
        num_frames = settings.num_frames
    if num_frames is not None:
        wanted: float = round(num_frames / MULTIPLE) * MULTIPLE
        if max_frames is not None:
            wanted = min(wanted, _down(max_frames))
        count = int(min(wanted, total_frames))
    else:
        least = math.ceil(settings.min_frames / MULTIPLE) * MULTIPLE
        most = _down(settings.max_frames if max_frames is None else max_frames)
        wanted = total_frames / average_fps * (settings.fps if fps is None else fps)
        count = _down(min(max(wanted, least), most, total_frames))
    spread = np.linspace(0, total_frames - 1, max(count, 1), dtype=np.int64)
    return [int(i) for i in np.unique(spread)]


def frame_pixel_limits(
    frames: int,
    settings: VisionSettings,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    total_max_pixels: int | None = None,
) -> tuple[int, int]:
    """The fewest and the most pixels that one frame may have after resizing.

    Args:
        frames: frames taken, before the last one is repeated to fill a temporal patch.
        settings: the checkpoint's limits.
        min_pixels: of one frame, in place of the checkpoint's.
        max_pixels: likewise.
        total_max_pixels: of all frames together, counted once per temporal patch.

    Raises MediaError for no frames and for limits that are not positive.
    """
    if frames < 1:
        raise MediaError(f"{frames} frames were taken of the video; take at least one")
    for name, value in (
        ("min_pixels", min_pixels),
        ("max_pixels", max_pixels),
        ("total_max_pixels", total_max_pixels),
    ):
        _check(name, value, whole=True)
    least = settings.video_min_pixels if min_pixels is None else min_pixels
    most = settings.video_max_pixels if max_pixels is None else max_pixels
    total = settings.video_total_max_pixels if total_max_pixels is None else total_max_pixels
    return least, max(least, min(total * settings.temporal_patch_size // frames, most))


def _down(frames: float) -> int:
    return math.floor(frames / MULTIPLE) * MULTIPLE


def _check(name: str, value: float | None, whole: bool = False) -> None:
    if value is None:
        return
    kind = "a whole number above 0" if whole else "a number above 0"
    number = isinstance(value, (int, np.integer)) if whole else isinstance(value, (int, float))
    if isinstance(value, bool) or not number or not (math.isfinite(value) and value > 0):
        raise MediaError(f"{name} is {value!r}; give {kind}")
