"""From what a user hands in to what the processor takes: checked, with every frame's time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.model_executor.models.mimo_v2_omni import MiMoV2OmniMultiModalDataParser
from vllm.multimodal.media import MediaWithBytes
from vllm.multimodal.parse import (
    ImageProcessorItems,
    ModalityDataItems,
)

from vllm_mimo.media.settings import MediaError, MediaSettings


class MimoDataParser(MiMoV2OmniMultiModalDataParser):
    """vLLM's parser, with checks, and with metadata for every video.

    A video may be frames (N, H, W, 3), or a pair of them and a dict. The dict may hold `timestamps`
    (seconds of each frame), or `fps` with or without `frames_indices`, as vLLM's loaders give, and
    `audio`, mono samples at the model's rate. Frames alone count as taken at the model's own rate.
    """

    def __init__(self, settings: MediaSettings, *, max_image_pixels: int, **kwargs: Any) -> None:
        rate = settings.audio.sampling_rate if settings.audio is not None else None
        super().__init__(target_sr=rate, target_channels=1, video_needs_metadata=True, **kwargs)
        self.settings, self.max_image_pixels = settings, max_image_pixels

    def _get_video_with_metadata(self, video: Any) -> tuple[Any, dict[str, Any]]:
        if isinstance(video, MediaWithBytes):
            frames, metadata = self._checked(video.media)
            return MediaWithBytes(frames, video.original_bytes), metadata
        frames, metadata = self._checked(video)
        return own(frames), metadata

    def _checked(self, video: Any) -> tuple[Any, dict[str, Any]]:
        """Frames and complete metadata of a video that is no file."""
        frames, metadata = super()._get_video_with_metadata(video)
        metadata = dict(metadata or {})
        if "timestamps" not in metadata:
            metadata["timestamps"] = self._times(len(frames), metadata)
        if len(metadata["timestamps"]) != len(frames):
            raise MediaError(
                f"a video of {len(frames)} frames came with {len(metadata['timestamps'])} "
                "timestamps: give one for each frame"
            )
        if not len(frames):
            raise MediaError("a video without frames: send one that has some")
        check_times(metadata["timestamps"])
        return frames, metadata

    def _times(self, count: int, metadata: Mapping[str, Any]) -> list[float]:
        """Seconds of each frame, from what other loaders know of them."""
        rate = metadata.get("fps")
        if not rate:
            return [index / self.settings.vision.fps for index in range(count)]
        indices: Sequence[int] = metadata.get("frames_indices") or range(count)
        return [int(index) / float(rate) for index in indices]

    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        items = super()._parse_image_data(data)
        if isinstance(items, ImageProcessorItems):
            for index in range(len(items)):
                if items.get(index) is not None:
                    width, height = items.get_image_size(index)
                    check_pixels(width, height, self.max_image_pixels)
            items.data = [own(item) for item in items.data]
        return items

    def _get_audio_with_sr(self, audio: Any) -> tuple[Any, float | None]:
        samples, rate = super()._get_audio_with_sr(audio)
        check_samples(samples)  # before vLLM resamples them, which fails where there are none
        return samples, rate


def own(pixels: Any) -> Any:
    """A copy of a user's array or tensor; anything else as it is.

    Pixels are cached and sent as they are: what the user writes to them later must not show there.
    """
    if isinstance(pixels, np.ndarray):
        return pixels.copy()
    return pixels.clone() if isinstance(pixels, torch.Tensor) else pixels


def check_pixels(width: int, height: int, limit: int) -> None:
    """Raise MediaError for a picture that is empty or larger than `limit` pixels."""
    if not 0 < width * height <= limit:
        raise MediaError(
            f"an image of {width}x{height} is {width * height:,} pixels, where 1 to {limit:,} are "
            "taken: scale it down (the model sees 8 megapixels at most), or raise the limit with "
            '--additional-config \'{"mimo": {"max_image_pixels": N}}\''
        )


def check_times(times: Sequence[float]) -> None:
    """Raise MediaError for times of frames that are negative, no numbers, or run backwards."""
    before = 0.0
    for time in times:
        if not before <= time < math.inf:
            raise MediaError(
                f"a video's timestamps hold {time!r} after {before!r}: give seconds from 0 on, in "
                "ascending order"
            )
        before = time


def check_samples(audio: Any) -> None:
    """Raise MediaError for audio without samples, or with values that are no numbers."""
    samples = torch.as_tensor(np.asarray(audio))
    if samples.numel() == 0:
        raise MediaError("the audio has no samples: send a recording that is not empty")
    if not torch.isfinite(samples).all():
        raise MediaError("the audio has samples that are NaN or infinite: send finite ones")
