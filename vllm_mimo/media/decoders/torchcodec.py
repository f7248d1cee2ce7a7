"""Meta's torchcodec: FFmpeg's libraries of the machine, or NVDEC.

Its pictures are the same frames as PyAV's; colours may differ, since it converts them by other
means and other versions of the same libraries.
"""

from __future__ import annotations

import importlib
from typing import Any

from vllm_mimo.media.decoders.job import Doubt, Job


def _load() -> Any:
    """torchcodec's decoder class. Raises ImportError."""
    try:
        decoders: Any = importlib.import_module("torchcodec.decoders")
        try:
            decoders.VideoDecoder(b"not a video")  # only now does it look for FFmpeg
        except (RuntimeError, ValueError) as refused:
            if "Could not load libtorchcodec" in str(refused):
                raise
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            "the video decoder 'torchcodec' needs the package torchcodec and FFmpeg's shared "
            "libraries, and at least one of them cannot be loaded; install them or choose 'pyav'"
        ) from error
    return decoders.VideoDecoder


VideoDecoder = _load()

BATCH = 8
"""Frames that are decoded before they are put away."""


def decode(job: Job) -> int:
    """Decode a part with one thread; see `job.Decoder`."""
    return decode_on(job, "cpu")


def decode_on(job: Job, device: str) -> int:
    """Decode a part on a device of torch, to pictures in host memory."""
    if not job.look.plain:
        raise Doubt("the video is to be turned")
    try:
        decoder = VideoDecoder(
            job.data, dimension_order="NHWC", num_ffmpeg_threads=1, device=device
        )
        if len(decoder) != job.total:
            raise Doubt(f"torchcodec finds {len(decoder)} frames instead of {job.total}")
        wanted = job.part.wanted
        for first in range(0, len(wanted), BATCH):
            if job.stop.is_set():
                return 0
            some = wanted[first : first + BATCH]
            batch = decoder.get_frames_at([frame.frame for frame in some])
            _refuse_fallback(decoder, device)
            if tuple(batch.data.shape[1:]) != (job.look.height, job.look.width, 3):
                raise Doubt("frames are of another size than the first one")
            pictures = batch.data.cpu().numpy()
            for frame, picture, time in zip(some, pictures, batch.pts_seconds, strict=True):
                if abs(float(time) - job.seconds(frame)) > job.tolerance:
                    raise Doubt(f"frame {frame.frame} has another time than its packet")
                job.put(frame.place, picture)
    except RuntimeError as error:
        raise Doubt(f"torchcodec: {error}") from error
    return 0


def _refuse_fallback(decoder: Any, device: str) -> None:
    """torchcodec decodes on the CPU without a word what NVDEC cannot: PyAV does that faster."""
    if device != "cpu" and bool(getattr(decoder, "cpu_fallback", False)):
        raise Doubt(f"not decoded by NVDEC: {decoder.cpu_fallback}")
