"""The stream of tensors on its way into the model: FP8 pairs and fused projections."""

from __future__ import annotations

import random

import pytest
import torch

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.weights import CheckpointError, dequantized, scale_tiles, unfused
from vllm_mimo.tiny.checkpoints import bundled_tokenizer
from vllm_mimo.tiny.shapes import random_config
from vllm_mimo.tiny.write import random_state, to_layout


@pytest.fixture(scope="module")
def checkpoint() -> tuple[TextGeometry, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Geometry, stored tensors of a V2.5 FP8 checkpoint, and the weights they were made from."""
    config = random_config("v2.5", bundled_tokenizer(), fp8=True)
    geometry = TextGeometry.from_config(config)
    state = random_state(geometry, seed=0)
    return geometry, dict(to_layout(config, state)), state


def test_any_order_gives_the_weights_within_fp8s_precision(checkpoint):
    geometry, stored, state = checkpoint
    items = list(stored.items())
    random.Random(0).shuffle(items)
    weights = dict(unfused(dequantized(items, geometry, torch.float32), geometry))
    assert weights.keys() == state.keys()
    for name, expected in state.items():
        tolerance = 0.07 * expected.abs().max()
        assert (weights[name].float() - expected).abs().max() <= tolerance, name


def test_a_weight_without_its_scale_is_named(checkpoint):
    geometry, stored, _ = checkpoint
    lost = "model.layers.2.self_attn.qkv_proj"
    rest = [(k, v) for k, v in stored.items() if k != f"{lost}.weight_scale_inv"]
    with pytest.raises(CheckpointError, match=lost):
        list(dequantized(rest, geometry, torch.float32))


def test_a_scale_of_the_wrong_size_is_refused():
    weight, scale = torch.zeros(704 * 2, 128), torch.zeros(12, 1)
    assert scale_tiles(weight, scale, 128, chunks=2) == 2
    assert scale_tiles(weight, torch.zeros(11, 1), 128, chunks=2) == 1
    with pytest.raises(CheckpointError, match="13 rows"):
        scale_tiles(weight, torch.zeros(13, 1), 128, chunks=2)
