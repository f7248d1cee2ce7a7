"""Where vLLM's own classes depart from the reference, shown with vLLM's own classes.

Each test says what may go when it fails: vLLM has then been corrected, and so may our replacement
go for releases from that one on. They fail for no supported release (0.32 and 0.33, whose files for
these models are the same).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.towers.conftest import finish
from vllm_mimo.media.images import picture_patches
from vllm_mimo.media.pictures import picture_tensor
from vllm_mimo.media.settings import MediaSettings
from vllm_mimo.tiny.checkpoints import bundled_tokenizer


def vllm_processor(config: dict[str, Any]) -> Any:
    """vLLM's own processor of this checkpoint."""
    from types import SimpleNamespace

    from vllm.transformers_utils.processors.mimo_v2_omni import MiMoOmniProcessor

    class Words:
        pad_token_id = 0

        def encode(self, text: str) -> list[int]:
            return bundled_tokenizer().encode(text, add_special_tokens=False).ids

    return MiMoOmniProcessor.from_hf_config(Words(), SimpleNamespace(**config)).mimo_processor


def test_merger_norm_is_rms_norm(vision_config, weights, tower, vision_reference, config):
    """Delete `MimoVisionTower.merger.ln_q` when vLLM's merger uses LayerNorm."""
    from vllm.model_executor.models.mimo_v2_omni import MiMoVisionTransformer

    from vllm_mimo.models.vision import MimoVisionAttention

    theirs = MiMoVisionTransformer(vision_config)
    theirs.load_weights(weights.vision.items())
    for block in finish(theirs).blocks:
        block.attn.__class__ = MimoVisionAttention  # theirs has no CPU path
    picture = np.random.default_rng(0).integers(0, 256, (160, 224, 3), dtype=np.uint8)
    pixels, grid = picture_patches(
        picture_tensor(picture), MediaSettings.from_config(config).vision
    )
    exact = vision_reference(pixels, torch.tensor([grid]))
    departure = (theirs(pixels, [list(grid)]) - exact).norm() / exact.norm()
    assert departure > 0.02
    theirs.merger.ln_q = nn.LayerNorm(64, eps=1e-6, bias=False)
    theirs.merger.ln_q.load_state_dict({"weight": weights.vision["merger.ln_q.weight"]})
    departure = (theirs(pixels, [list(grid)]) - exact).norm() / exact.norm()
    assert departure < 1e-5, "the norm is the whole difference"


def test_pixels_are_normalised_with_imagenet_statistics(config):
    """Delete `media.images.normalize` from the list of corrections when vLLM uses CLIP's."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from vllm.transformers_utils.processors.mimo_v2_omni import ImageInput

    grey = np.full((96, 128, 3), 128, np.uint8)  # of this size already: nothing is resized
    theirs = vllm_processor(config).process_image(ImageInput(image=Image.fromarray(grey)))
    hub = Qwen2VLImageProcessor(patch_size=16, merge_size=2, temporal_patch_size=2)
    exact = hub(Image.fromarray(grey), do_resize=False, return_tensors="pt")["pixel_values"]
    ours, _ = picture_patches(picture_tensor(grey), MediaSettings.from_config(config).vision)
    assert (ours - exact).abs().max() <= 1e-4
    by_channel = exact.unflatten(1, (3, -1)).mean((0, 2))
    assert (theirs.mean((1, 2)) - by_channel).abs().max() > 0.05


def test_videos_lose_their_times():
    """Delete the timestamps of `MimoDataParser` and the loader when vLLM keeps its metadata."""
    from vllm.model_executor.models.mimo_v2_omni import MiMoV2OmniMultiModalProcessor
    from vllm.multimodal.parse import MultiModalDataItems, VideoProcessorItems

    frames = np.zeros((8, 32, 32, 3), np.uint8)
    metadata = {"fps": 25.0, "frames_indices": [round(i * 2500 / 8) for i in range(8)]}
    items = VideoProcessorItems([frames], metadata=[metadata])
    theirs = object.__new__(MiMoV2OmniMultiModalProcessor)
    made = theirs._get_hf_mm_inputs(MultiModalDataItems({"video": items}), {})
    (_, times), *_ = made.hf_data["videos"]
    assert times.tolist() == [0, 1, 2, 3, 4, 5, 6, 7], "of a video of 100 seconds"


def test_audio_codes_depend_on_the_batch(ears):
    """Delete `MimoAudioTower.get_audio_feature` when vLLM's tokenizer masks its padding."""
    from vllm.model_executor.models.mimo_audio import tokenize_audio_batch

    encoder = ears.audio_tokenizer.encoder
    short = torch.randn(101, 128, generator=torch.Generator().manual_seed(0))
    long = torch.randn(700, 128, generator=torch.Generator().manual_seed(1))
    alone = tokenize_audio_batch([short], encoder)[0]
    batched = tokenize_audio_batch([short, long], encoder)[0]
    assert not torch.equal(alone, batched)
    assert torch.equal(ears.codes(short), alone)


@pytest.mark.parametrize("folder", ["XiaomiMiMo/MiMo-V2.5"])
def test_audio_is_dropped_for_a_hub_name(folder, config):
    """Delete `checkpoints.audio_tokenizer` when vLLM resolves hub names there."""
    from vllm.model_executor.models.mimo_audio import MimoAudioEncoder

    theirs = MimoAudioEncoder(config["audio_config"], model_path=folder)
    assert theirs.audio_tokenizer is None
    with pytest.raises(RuntimeError, match="audio_tokenizer is not loaded"):
        theirs.get_audio_feature([torch.zeros(100, 128)])
