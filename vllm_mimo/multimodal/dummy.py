"""Media for vLLM's memory profile: the largest that one forward of a tower takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.config.multimodal import MultiModalDummyOptions
from vllm.inputs import MultiModalDataDict
from vllm.model_executor.models.mimo_v2_omni import MiMoV2OmniDummyInputsBuilder

from vllm_mimo.models.limits import PATCHES_AT_ONCE
from vllm_mimo.multimodal.info import MimoProcessingInfo


class MimoDummyInputs(MiMoV2OmniDummyInputsBuilder):
    """vLLM's dummy text with our media. A video longer than one slice of the tower needs no more
    memory than the slice.
    """

    info: MimoProcessingInfo

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: MultiModalDummyOptions
    ) -> MultiModalDataDict:
        settings = self.info.settings
        vision, audio = settings.vision, settings.audio
        most = min(
            vision.video_total_max_pixels // vision.factor**2,
            PATCHES_AT_ONCE // vision.merge_size**2,
            seq_len,
        )
        image = self.info.get_image_size_with_most_features(vision.image_max_pixels)
        frame = self.info.get_image_size_with_most_features(
            min(vision.video_max_pixels, max(most, 1) * vision.factor**2)
        )
        patches = max(1, most // (frame.width * frame.height // vision.factor**2))
        data: dict[str, Any] = {
            "image": self._get_dummy_images(
                width=image.width,
                height=image.height,
                num_images=mm_counts.get("image", 0),
                overrides=mm_options.get("image"),
            ),
            "video": self._get_dummy_videos(
                width=frame.width,
                height=frame.height,
                num_frames=min(patches * vision.temporal_patch_size, vision.max_frames),
                num_videos=mm_counts.get("video", 0),
                overrides=mm_options.get("video"),
            ),
        }
        if audio is not None and self.info.hears:
            data["audio"] = self._get_dummy_audios(
                length=audio.segment_size * audio.hop_length,
                num_audios=mm_counts.get("audio", 0),
                overrides=mm_options.get("audio"),
            )
        return data
