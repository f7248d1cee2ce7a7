"""How a checkpoint wants its media prepared, read once from its config.

Sources: `processor_config`, `vision_config` and `audio_config` in MiMo-V2.5's config.json. Pixel
statistics are not in it: the hub's preprocessor_config.json names CLIP's, the default of
`Qwen2VLImageProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


class MediaError(ValueError):
    """Media that cannot be used; the message names what is wrong and what would do instead."""


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """Images and the pictures of videos. Sizes are in pixels of a resized picture."""

    patch_size: int
    merge_size: int
    """Patches a side that become one token."""
    temporal_patch_size: int
    """Frames in one patch; a still picture is repeated."""
    image_min_pixels: int
    image_max_pixels: int
    video_min_pixels: int
    video_max_pixels: int
    """Of one frame."""
    video_total_max_pixels: int
    """Of all frames of one video together, counted once per temporal patch."""
    fps: float
    """Frames taken per second of video."""
    num_frames: int | None
    """Frames taken of any video, in place of `fps`."""
    min_frames: int
    max_frames: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    @property
    def factor(self) -> int:
        """Both sides of a resized picture are multiples of this many pixels."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, slots=True)
class AudioSettings:
    """Sound, from samples to the number of tokens."""

    sampling_rate: int
    n_fft: int
    hop_length: int
    window_size: int
    n_mels: int
    f_min: float
    f_max: float | None
    kernel_size: int
    stride_size: int
    avg_pooler: int
    group_size: int
    """Codes (at `ids_per_second`) in one token."""
    segment_size: int
    """Mel frames that the tokenizer encodes together."""
    ids_per_second: float

    @property
    def tokens_per_second(self) -> float:
        return self.ids_per_second / self.group_size


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Special tokens round and in place of media."""

    image: int
    video: int
    audio: int
    vision_start: int
    vision_end: int
    video_start: int
    video_end: int
    audio_start: int
    audio_end: int


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """Everything above. Build it with `from_config`."""

    vision: VisionSettings
    audio: AudioSettings | None
    """None for a checkpoint without an audio tower."""
    tokens: TokenIds
    interleave_seconds: float
    """A video's sound stands after each temporal patch (0), after every so many seconds of
    pictures, or once after all of them (-1)."""

    @classmethod
    def from_config(cls, config: Any) -> MediaSettings:
        """Read a config.json dict or a `transformers` config object.

        Raises MediaError naming a field that is missing.
        """
        section = _section(config, "processor_config")
        vision = _section(config, "vision_config")
        audio = _section(config, "audio_config")
        patch, merge = int(vision.get("patch_size", 16)), int(vision.get("spatial_merge_size", 2))
        area = (patch * merge) ** 2

        def pixels(name: str, areas: int) -> int:
            return int(section.get(name) or areas * area)

        def token(name: str) -> int:
            value = section.get(name, _get(config, name))
            if value is None:
                raise MediaError(f"config.json: processor_config has no '{name}'")
            return int(value)

        frames = section.get("num_frames")
        return cls(
            vision=VisionSettings(
                patch_size=patch,
                merge_size=merge,
                temporal_patch_size=int(vision.get("temporal_patch_size", 2)),
                image_min_pixels=pixels("image_min_pixels", 4),
                image_max_pixels=pixels("image_max_pixels", 4096),
                video_min_pixels=pixels("video_min_pixels", 4),
                video_max_pixels=pixels("video_max_pixels", 4096),
                video_total_max_pixels=pixels("video_total_max_pixels", 16384),
                fps=float(section.get("fps") or 2.0),
                num_frames=int(frames) if frames else None,
                min_frames=int(section.get("min_frames") or 8),
                max_frames=int(section.get("max_frames") or 256),
            ),
            audio=_audio(section, audio) if audio else None,
            tokens=TokenIds(
                **{
                    name: token(f"{name}_token_id")
                    for name in TokenIds.__dataclass_fields__  # `image` is `image_token_id`
                }
            ),
            interleave_seconds=float(section.get("video_audio_interleave_length") or 0.0),
        )


def _audio(section: Mapping[str, Any], audio: Mapping[str, Any]) -> AudioSettings:
    f_max = section.get("audio_fmax")
    return AudioSettings(
        sampling_rate=int(section.get("audio_sampling_rate") or 24000),
        n_fft=int(section.get("audio_nfft") or 960),
        hop_length=int(section.get("audio_hop_length") or 240),
        window_size=int(section.get("audio_window_size") or 960),
        n_mels=int(section.get("audio_n_mels") or 128),
        f_min=float(section.get("audio_fmin") or 0.0),
        f_max=None if f_max is None else float(f_max),
        kernel_size=int(section.get("audio_kernel_size") or 3),
        stride_size=int(section.get("audio_stride_size") or 2),
        avg_pooler=int(section.get("audio_avg_pooler") or 2),
        group_size=int(audio.get("group_size") or section.get("audio_group_size") or 4),
        segment_size=int(audio.get("audio_segment_size") or 6000),
        ids_per_second=float(section.get("audio_input_id_per_second") or 25.0),
    )


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _section(config: Any, name: str) -> Mapping[str, Any]:
    value = _get(config, name) or {}
    return value if isinstance(value, Mapping) else value.to_dict()
