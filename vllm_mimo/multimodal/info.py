"""What vLLM asks about MiMo-V2.5's media: which kinds, how many tokens at most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from vllm import envs
from vllm.model_executor.models.mimo_v2_omni import MiMoV2OmniProcessingInfo
from vllm.multimodal.parse import MultiModalDataParser
from vllm.multimodal.processing import InputProcessingContext

from vllm_mimo.checkpoints.audio_tokenizer import audio_tokenizer_folder
from vllm_mimo.config import CONFIG_ATTRIBUTE, MimoConfig
from vllm_mimo.media.settings import MediaSettings
from vllm_mimo.multimodal.parser import MimoDataParser


def config_of(ctx: InputProcessingContext) -> MimoConfig:
    """The plugin's configuration, which `hooks.engine_defaults` leaves with the model's config."""
    return MimoConfig(**getattr(ctx.get_hf_config(), CONFIG_ATTRIBUTE, {}))


class MimoProcessingInfo(MiMoV2OmniProcessingInfo):
    """Limits and settings of one checkpoint."""

    @cached_property
    def settings(self) -> MediaSettings:
        return MediaSettings.from_config(self.get_hf_config())

    @cached_property
    def config(self) -> MimoConfig:
        return config_of(self.ctx)

    @cached_property
    def hears(self) -> bool:
        """Whether the checkpoint has everything that audio needs."""
        model = self.ctx.model_config
        return (
            self.settings.audio is not None
            and audio_tokenizer_folder(model.model, model.revision) is not None
        )

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        limits: dict[str, int | None] = {"image": None, "video": None}
        return {"audio": None, **limits} if self.hears else limits

    def get_data_parser(self) -> MultiModalDataParser:
        return MimoDataParser(
            self.settings,
            max_image_pixels=self.config.max_image_pixels,
            spatial_merge_size=self.settings.vision.merge_size,
            expected_hidden_size=self._get_expected_hidden_size(),
            allow_missing_mm_embeddings=self.allow_missing_mm_embeddings,
        )

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        """The most tokens that one item of each kind can have, in a prompt of `seq_len`.

        vLLM sizes the encoder cache by the largest of them.
        """
        vision, audio = self.settings.vision, self.settings.audio
        area = vision.factor**2
        frames = vision.num_frames or vision.max_frames
        patches = -(-frames // vision.temporal_patch_size)
        pictures = min(
            vision.video_total_max_pixels // area, patches * vision.video_max_pixels // area
        )
        tokens = {"image": vision.image_max_pixels // area, "video": max(pictures, patches)}
        if self.hears and audio is not None:
            heard = math.ceil(frames / vision.fps * audio.tokens_per_second) + 1
            tokens["video"] += heard
            longest = envs.VLLM_MAX_AUDIO_DECODE_DURATION_S or seq_len
            tokens["audio"] = math.ceil(longest * audio.tokens_per_second) + 1
        return {kind: min(count, seq_len) for kind, count in tokens.items()}
