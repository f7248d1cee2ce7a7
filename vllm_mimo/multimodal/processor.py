"""MiMo-V2.5's media processor for vLLM: our media functions, behind vLLM's processing interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import BatchFeature
from vllm.model_executor.models.qwen2_vl import _create_qwen2vl_field_factory
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from vllm.multimodal.parse import MultiModalDataItems
from vllm.multimodal.processing import (
    BaseMultiModalProcessor,
    PromptReplacement,
    PromptUpdate,
    PromptUpdateDetails,
)

from vllm_mimo.media import audio, images, pictures
from vllm_mimo.media.handover import handed_over
from vllm_mimo.media.layout import Group, end_of, group_video, video_tokens
from vllm_mimo.multimodal.info import MimoProcessingInfo
from vllm_mimo.multimodal.options import MediaOptions

VIDEO_FIELDS = ("video_times", "video_mel", "video_groups")
"""Beside pixels and grid, each video has: seconds of its temporal patches; log-mel of its sound,
(0, n_mels) without; and its groups (`media.layout.Group`) as rows of integers."""


class MimoProcessor(BaseMultiModalProcessor[MimoProcessingInfo]):
    """Media to tensors, and placeholders to token ids."""

    def _call_hf_processor(
        self, hf_data: Mapping[str, Any], hf_kwargs: Mapping[str, object]
    ) -> BatchFeature:
        """Prepare images, videos and audio; there is no `transformers` processor behind it."""
        options = MediaOptions.from_kwargs(self.info.ctx.get_merged_mm_kwargs(hf_kwargs))
        data: dict[str, Any] = {}
        if given := hf_data.get("images"):
            data |= self._images(given, options)
        if videos := hf_data.get("videos"):
            data |= self._videos(videos, options)
        if sounds := hf_data.get("audio"):
            data |= self._audio(sounds)
        return BatchFeature(data)

    def _images(self, given: Sequence[Any], options: MediaOptions) -> dict[str, Any]:
        pixels, grids = [], []
        for picture in given:
            frames = images.frames_of(pictures.picture_tensor(picture))
            _, height, width, _ = frames.shape
            grid = images.patch_counts(
                height,
                width,
                self.info.settings.vision,
                min_pixels=options.min_pixels,
                max_pixels=options.max_pixels,
            )
            pixels.append(self._handed_over(frames, grid))
            grids.append(grid)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor(grids)}

    def _handed_over(self, frames: torch.Tensor, grid: images.Grid) -> torch.Tensor:
        patch = self.info.settings.vision.patch_size
        size = (grid[1] * patch, grid[2] * patch)
        return handed_over(frames, size, self.info.config.image_arithmetic)

    def _videos(
        self, videos: Sequence[tuple[Any, dict[str, Any]]], options: MediaOptions
    ) -> dict[str, Any]:
        settings = self.info.settings
        step = settings.vision.temporal_patch_size
        pixels, grids = [], []
        fields: dict[str, list[torch.Tensor]] = {name: [] for name in VIDEO_FIELDS}
        for frames, metadata in videos:
            taken = images.check_frames(frames)
            count, height, width, _ = taken.shape
            grid = images.video_grid(
                count,
                height,
                width,
                settings.vision,
                min_pixels=options.min_pixels,
                max_pixels=options.max_pixels,
            )
            times = [float(t) for t in metadata["timestamps"]]
            mel = self._sound_of(metadata, options)
            sound, rate = 0, 0.0
            if len(mel):
                assert settings.audio is not None
                sound = audio.token_count(len(mel), settings.audio)
                rate = settings.audio.tokens_per_second
            groups = group_video(
                times[::step], end_of(times), sound, rate, settings.interleave_seconds
            )
            pixels.append(self._handed_over(taken, grid))
            grids.append(grid)
            fields["video_times"].append(torch.tensor(times[::step], dtype=torch.float64))
            fields["video_mel"].append(mel)
            fields["video_groups"].append(
                torch.tensor([[g.first, g.pictures, g.sound_start, g.sound_end] for g in groups])
            )
        return {
            "pixel_values_videos": pixels,
            "video_grid_thw": torch.tensor(grids),
            **fields,
        }

    def _sound_of(self, metadata: Mapping[str, Any], options: MediaOptions) -> torch.Tensor:
        """Log-mel (frames, n_mels) of a video's sound track; no frames where it is not heard."""
        settings, samples = self.info.settings.audio, metadata.get("audio")
        if settings is None:
            return torch.zeros(0, 1)
        wanted = options.audio_in_video and self.info.config.audio_in_video and self.info.hears
        if not wanted or samples is None or not len(samples):
            return torch.zeros(0, settings.n_mels)
        return audio.log_mel(torch.as_tensor(samples, dtype=torch.float32), settings)

    def _audio(self, sounds: Sequence[Any]) -> dict[str, Any]:
        settings = self.info.settings.audio
        assert settings is not None, "audio of a checkpoint without a tower is refused earlier"
        mels = [
            audio.log_mel(torch.as_tensor(samples, dtype=torch.float32), settings)
            for samples in sounds
        ]
        counts = [audio.token_count(len(mel), settings) for mel in mels]
        return {"audio_features": mels, "audio_token_lens": torch.tensor(counts)}

    def _get_mm_fields_config(
        self, hf_inputs: BatchFeature, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        fields = dict(
            _create_qwen2vl_field_factory(self.info.settings.vision.merge_size)(hf_inputs)
        )
        # Frames of an item (`media.handover`). An hour of video is gigabytes of pixels: the tower
        # takes them to the device in slices.
        fields["pixel_values"] = MultiModalFieldConfig.batched("image")
        fields["pixel_values_videos"] = MultiModalFieldConfig.batched("video", keep_on_cpu=True)
        for name in VIDEO_FIELDS:
            fields[name] = MultiModalFieldConfig.batched("video", keep_on_cpu=name != "video_mel")
        fields["audio_features"] = MultiModalFieldConfig.batched("audio")
        fields["audio_token_lens"] = MultiModalFieldConfig.batched("audio", keep_on_cpu=True)
        return fields

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, Any],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptUpdate]:
        ids, vision = self.info.settings.tokens, self.info.settings.vision
        tokenizer = self.info.get_tokenizer()

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        def picture_tokens(grid: torch.Tensor) -> int:
            _, rows, columns = grid.tolist()
            return images.grid_tokens((1, rows, columns), vision)

        def image(index: int) -> PromptUpdateDetails:
            grid = out_mm_kwargs["image"][index]["image_grid_thw"].data
            return PromptUpdateDetails.from_seq([ids.image] * picture_tokens(grid))

        def video(index: int) -> PromptUpdateDetails:
            item = out_mm_kwargs["video"][index]
            groups = [Group(*row) for row in item["video_groups"].data.tolist()]
            full, embedded = video_tokens(
                groups,
                item["video_times"].data.tolist(),
                picture_tokens(item["video_grid_thw"].data),
                ids,
                encode,
            )
            mask = torch.tensor(embedded)
            return PromptUpdateDetails(full=full, is_embed=lambda _: mask)

        def sound(index: int) -> PromptUpdateDetails:
            count = int(out_mm_kwargs["audio"][index]["audio_token_lens"].data)
            return PromptUpdateDetails.from_seq([ids.audio] * count)

        # A video brings its own start and end: the pair round its placeholder goes, as in the
        # reference (vLLM keeps both). A placeholder alone is taken as well.
        wrapped = [ids.vision_start, ids.video, ids.vision_end]
        return [
            PromptReplacement("image", [ids.image], image),
            PromptReplacement("video", wrapped, video),
            PromptReplacement("video", [ids.video], video),
            PromptReplacement("audio", [ids.audio], sound),
        ]
