"""MiMo-V2.5 with its towers: pictures, videos and sound into the language model's prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.mimo_v2_omni import (
    MiMoV2OmniDummyInputsBuilder,
    MiMoV2OmniForCausalLM,
    MiMoV2OmniMultiModalProcessor,
    MiMoV2OmniProcessingInfo,
)
from vllm.model_executor.models.utils import maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    InputProcessingContext,
)
from vllm.transformers_utils.configs.mimo_v2_omni import Mimo_VLVisionConfig

from vllm_mimo.checkpoints.audio_tokenizer import audio_tokenizer_folder
from vllm_mimo.config import from_vllm_config
from vllm_mimo.media.settings import MediaSettings
from vllm_mimo.models.audio import MimoAudioTower
from vllm_mimo.models.loading import CheckedLoading
from vllm_mimo.models.text import MimoV2ForCausalLM
from vllm_mimo.models.vision import MimoVisionTower
from vllm_mimo.multimodal.dummy import MimoDummyInputs
from vllm_mimo.multimodal.info import MimoProcessingInfo, config_of
from vllm_mimo.multimodal.processor import MimoProcessor

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def _info(ctx: InputProcessingContext) -> MiMoV2OmniProcessingInfo:
    return MimoProcessingInfo(ctx) if config_of(ctx).enabled else MiMoV2OmniProcessingInfo(ctx)


def _dummy_inputs(info: MiMoV2OmniProcessingInfo) -> BaseDummyInputsBuilder:
    if isinstance(info, MimoProcessingInfo):
        return MimoDummyInputs(info)
    return MiMoV2OmniDummyInputsBuilder(info)


def _processor(
    info: MiMoV2OmniProcessingInfo, dummy_inputs: BaseDummyInputsBuilder
) -> BaseMultiModalProcessor:
    """Ours, or vLLM's where the plugin is switched off for this engine."""
    if isinstance(info, MimoProcessingInfo):
        return MimoProcessor(info, dummy_inputs)
    return MiMoV2OmniMultiModalProcessor(info, dummy_inputs)


@MULTIMODAL_REGISTRY.register_processor(_processor, info=_info, dummy_inputs=_dummy_inputs)
class MimoV2OmniForCausalLM(CheckedLoading, MiMoV2OmniForCausalLM):
    """vLLM's omni model round our towers and our text model."""

    def __new__(cls, *, vllm_config: VllmConfig, prefix: str = "") -> nn.Module:
        if not from_vllm_config(vllm_config).enabled:
            return MiMoV2OmniForCausalLM(vllm_config=vllm_config, prefix=prefix)
        # vLLM maps the names in `ignored_layers` here, from what it finds among the arguments.
        return super().__new__(cls, vllm_config=vllm_config, prefix=prefix)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        model = vllm_config.model_config
        self.config = config = model.hf_config
        vision = config.vision_config
        if isinstance(vision, dict):
            vision = Mimo_VLVisionConfig.from_dict(vision)
        self.prepare_checks(vllm_config)
        with self._mark_tower_model(vllm_config, {"image", "video"}):
            self.visual = MimoVisionTower(
                vision,
                settings=MediaSettings.from_config(config).vision,
                prefix=maybe_prefix(prefix, "visual"),
            )
        self.audio_encoder = None
        if getattr(config, "audio_config", None):
            folder = audio_tokenizer_folder(
                model.model, model.revision, vllm_config.load_config.download_dir
            )
            with self._mark_tower_model(vllm_config, "audio"):
                self.audio_encoder = MimoAudioTower(config.audio_config, folder)
        with self._mark_language_model(vllm_config):
            self.language_model = MimoV2ForCausalLM(
                vllm_config=vllm_config, prefix=maybe_prefix(prefix, "language_model")
            )
        self.language_model.strict = False  # all tensors are checked here, towers included
        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded = super().load_weights(weights)
        if self.audio_encoder is not None and self.audio_encoder.audio_tokenizer is not None:
            # The tokenizer came from its own folder.
            loaded |= {
                f"audio_encoder.audio_tokenizer.{name}"
                for name, _ in self.audio_encoder.audio_tokenizer.named_parameters()
            }
        return loaded

    def embed_multimodal(self, **kwargs: Any) -> list[torch.Tensor]:
        """Embeddings (tokens, hidden) of each item of one modality, in their order.

        Args:
            kwargs: the processor's fields of items of one modality (`multimodal/processor.py`).
        """
        if "pixel_values" in kwargs:
            return self._embed_images(**kwargs)
        if "image_embeds" in kwargs:
            return list(self._process_image_input(self._parse_and_validate_image_input(**kwargs)))
        if "pixel_values_videos" in kwargs:
            return self._embed_videos(**kwargs)
        if "audio_features" in kwargs:
            return self._embed_sounds(list(kwargs["audio_features"]))
        return []

    def _embed_images(
        self, *, pixel_values: Tensors, image_grid_thw: torch.Tensor, **unused: object
    ) -> list[torch.Tensor]:
        grids = image_grid_thw.tolist()
        embedded = self.visual.embed(pixel_values, grids)
        return list(embedded.split([self._tokens(grid) for grid in grids]))

    def _embed_videos(
        self,
        *,
        pixel_values_videos: Tensors,
        video_grid_thw: torch.Tensor,
        video_mel: Tensors,
        video_groups: Tensors,
        **unused: object,
    ) -> list[torch.Tensor]:
        grids = video_grid_thw.tolist()
        pictures = self.visual.embed(pixel_values_videos, grids)
        pictures = pictures.split([self._tokens(grid) for grid in grids])
        mels = [mel for mel in video_mel if len(mel)]
        sounds = iter(self._embed_sounds(mels) if mels else ())
        return [
            interleave(part.unflatten(0, (grid[0], -1)), next(sounds), groups.tolist())
            if len(mel)
            else part
            for part, grid, mel, groups in zip(
                pictures, grids, video_mel, video_groups, strict=True
            )
        ]

    def _embed_sounds(self, mels: list[torch.Tensor]) -> list[torch.Tensor]:
        assert self.audio_encoder is not None, "a request with audio passed a model without"
        embedded, counts = self.audio_encoder.get_audio_feature(mels)
        return list(embedded.split(counts))

    def _tokens(self, grid: list[int]) -> int:
        return grid[0] * grid[1] * grid[2] // self.visual.spatial_merge_unit


def interleave(
    pictures: torch.Tensor, sound: torch.Tensor, groups: list[list[int]]
) -> torch.Tensor:
    """Put a video's sound after the pictures that it belongs to, as its tokens stand in the prompt.

    Args:
        pictures: (temporal patches, tokens of one, hidden).
        sound: (tokens, hidden).
        groups: rows of first patch, number of patches, first and last + 1 of the sound's tokens.
    """
    parts = []
    for first, count, start, end in groups:
        parts += [pictures[first : first + count].flatten(0, 1), sound[start:end]]
    return torch.cat(parts)
