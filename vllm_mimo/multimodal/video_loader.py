"""Video loading for MiMo checkpoints: which frames, with the times that the container gives them.

Registered with vLLM as the video backend `mimo` and chosen for MiMo checkpoints by default
(`hooks/media_defaults.py`); other models keep theirs.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoLoader

from vllm_mimo.media.sampling import frame_indices
from vllm_mimo.media.settings import VisionSettings
from vllm_mimo.media.video import decode_video

logger = logging.getLogger("vllm.vllm_mimo")

BACKEND = "mimo"
"""Name of the loader, for `--media-io-kwargs '{"video": {"video_backend": "mimo"}}'`."""


@VIDEO_LOADER_REGISTRY.register(BACKEND)
class MimoVideoLoader(VideoLoader):
    """PyAV, the reference's choice of frames, the frames' own times, and the sound track."""

    @classmethod
    def load_bytes(
        cls,
        data: bytes,
        num_frames: int = -1,
        *,
        fps: float | None = None,
        max_frames: int | None = None,
        sampling: dict[str, Any] | None = None,
        **unused: Any,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Decode the frames that the model sees.

        Args:
            data: a whole file.
            num_frames: frames to take, unless `fps` is given; -1 for the model's own choice.
            fps: frames a second to take.
            max_frames: the most frames to take.
            sampling: the model's own choice: fields of VisionSettings, and `audio_rate`.

        Returns:
            Frames (N, H, W, 3) uint8 RGB, and metadata: `timestamps` in seconds, `audio` (mono
            float32 samples at `audio_rate`) where there is a track, `cut_short` (what is missing)
            where the process keeps such files, and vLLM's usual fields.

        Raises MediaError for a file that cannot be decoded and options that make no sense.
        """
        choice = dict(sampling or {})
        rate = choice.pop("audio_rate", None)
        settings = VisionSettings(**choice) if choice else DEFAULTS
        wanted = None if fps or num_frames == -1 else num_frames

        def choose(total: int, average_fps: float) -> list[int]:
            return frame_indices(
                total, average_fps, settings, fps=fps, num_frames=wanted, max_frames=max_frames
            )

        video = decode_video(data, choose, audio_rate=rate)
        metadata: dict[str, Any] = {
            "total_num_frames": video.total_frames,
            "fps": video.average_fps,
            "duration": video.duration,
            "video_backend": BACKEND,
            "frames_indices": list(video.indices),
            "do_sample_frames": False,
            "timestamps": list(video.times),
        }
        if video.audio is not None:
            metadata["audio"] = video.audio
        if video.cut_short is not None:
            logger.warning(
                "a video is cut short: %s; the %d frames before are used",
                video.cut_short,
                video.total_frames,
            )
            metadata["cut_short"] = video.cut_short
        return video.frames, metadata


DEFAULTS = VisionSettings(
    patch_size=16,
    merge_size=2,
    temporal_patch_size=2,
    image_min_pixels=8192,
    image_max_pixels=8_388_608,
    video_min_pixels=8192,
    video_max_pixels=8_388_608,
    video_total_max_pixels=268_435_456,
    fps=1.0,
    num_frames=None,
    min_frames=8,
    max_frames=3600,
)
"""MiMo-V2.5's own values, for users who name this backend with another model."""
