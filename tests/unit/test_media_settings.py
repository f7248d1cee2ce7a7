"""Media settings of the real checkpoints, and of configs that lack something."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedConfig

from tests.paths import real_config
from vllm_mimo.media.settings import (
    AudioSettings,
    MediaError,
    MediaSettings,
    TokenIds,
    VisionSettings,
)

V25 = MediaSettings(
    vision=VisionSettings(
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
        # transformers' OPENAI_CLIP_MEAN and OPENAI_CLIP_STD
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    ),
    audio=AudioSettings(
        sampling_rate=24_000,
        n_fft=960,
        hop_length=240,
        window_size=960,
        n_mels=128,
        f_min=0.0,
        f_max=None,
        kernel_size=3,
        stride_size=2,
        avg_pooler=2,
        group_size=4,
        segment_size=6000,
        ids_per_second=25.0,
    ),
    tokens=TokenIds(
        image=151655,
        video=151656,
        audio=151669,
        vision_start=151652,
        vision_end=151653,
        video_start=151670,
        video_end=151671,
        audio_start=151673,
        audio_end=151674,
    ),
    interleave_seconds=0.0,
)


def test_v25() -> None:
    settings = MediaSettings.from_config(real_config("MiMo-V2.5"))
    assert settings == V25
    assert settings.vision.factor == 32
    assert settings.audio is not None
    assert settings.audio.tokens_per_second == 6.25


def test_pixel_statistics_are_those_of_the_hubs_processor() -> None:
    """The hub's preprocessor_config.json leaves them at Qwen2-VL's defaults."""
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    vision = MediaSettings.from_config(real_config("MiMo-V2.5")).vision
    assert list(vision.mean) == list(OPENAI_CLIP_MEAN)
    assert list(vision.std) == list(OPENAI_CLIP_STD)


def test_a_config_object_reads_as_its_dict() -> None:
    """vLLM hands on a `transformers` object, with sections that are dicts or objects."""
    raw = real_config("MiMo-V2.5")
    config = PreTrainedConfig()
    config.processor_config = raw["processor_config"]
    config.vision_config = PreTrainedConfig.from_dict(raw["vision_config"])
    config.audio_config = raw["audio_config"]
    assert MediaSettings.from_config(config) == V25


def test_our_loaders_defaults_are_v25s() -> None:
    from vllm_mimo.multimodal.video_loader import DEFAULTS

    assert V25.vision == DEFAULTS


@pytest.mark.parametrize("name", ["image_token_id", "video_start_token_id", "audio_end_token_id"])
def test_a_missing_token_is_named(name: str) -> None:
    config = real_config("MiMo-V2.5")
    del config["processor_config"][name]
    config.pop(name, None)  # where the text model's own section says it too
    with pytest.raises(MediaError, match=f"processor_config has no '{name}'"):
        MediaSettings.from_config(config)


def test_a_token_may_stand_beside_the_section() -> None:
    config = real_config("MiMo-V2.5")
    config["image_token_id"] = config["processor_config"].pop("image_token_id")
    assert MediaSettings.from_config(config) == V25


@pytest.mark.parametrize("name", ["MiMo-V2-Flash", "MiMo-V2.5-Pro"])
def test_a_text_only_config_has_no_media(name: str) -> None:
    with pytest.raises(MediaError, match="processor_config has no 'image_token_id'"):
        MediaSettings.from_config(real_config(name))


def test_a_checkpoint_that_sees_and_does_not_hear() -> None:
    config = real_config("MiMo-V2.5")
    del config["audio_config"]
    settings = MediaSettings.from_config(config)
    assert settings.audio is None
    assert settings.vision == V25.vision


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("fps", None, ("vision", "fps", 2.0)),
        ("num_frames", 32, ("vision", "num_frames", 32)),
        ("max_frames", None, ("vision", "max_frames", 256)),
        ("video_total_max_pixels", None, ("vision", "video_total_max_pixels", 16384 * 32 * 32)),
        ("image_min_pixels", None, ("vision", "image_min_pixels", 4 * 32 * 32)),
        ("audio_fmax", 8000, ("audio", "f_max", 8000.0)),
        ("audio_fmax", 0, ("audio", "f_max", 0.0)),
    ],
)
def test_fields_and_their_defaults(name: str, value: Any, read: tuple[str, str, Any]) -> None:
    """Defaults are the reference processor's."""
    config = real_config("MiMo-V2.5")
    config["processor_config"][name] = value
    section, field, expected = read
    assert getattr(getattr(MediaSettings.from_config(config), section), field) == expected


@pytest.mark.parametrize(("length", "expected"), [(None, 0.0), (-1, -1.0), (2, 2.0)])
def test_interleave_length(length: float | None, expected: float) -> None:
    config = real_config("MiMo-V2.5")
    config["processor_config"]["video_audio_interleave_length"] = length
    assert MediaSettings.from_config(config).interleave_seconds == expected
