"""Projections that a block-FP8 config leaves unquantised."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.loader.conftest import Build, as_rank, engine_config, narrow_config
from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.models.projection import BlockFP8QKV, PlainQKV
from vllm_mimo.tiny.write import random_state, to_layout


def test_an_ignored_projection_is_loaded_in_bf16(tmp_path: Path, build: Build):
    config = narrow_config("MiMo-V2.5", fp8=True)
    name = "model.layers.0.self_attn.qkv_proj"
    config["quantization_config"]["ignored_layers"].append(name)
    geometry = TextGeometry.from_config(config)
    tensors = dict(to_layout(config, random_state(geometry, seed=1)))
    assert tensors[f"{name}.weight"].dtype == torch.bfloat16
    model = build(engine_config(tmp_path, config), 5, 8)
    with as_rank(5, 8):
        model.load_weights(iter(tensors.items()))
    ignored, other = (layer.self_attn.qkv_proj for layer in model.model.layers)
    assert isinstance(ignored, PlainQKV)
    assert isinstance(other, BlockFP8QKV)
    q, _, _ = qkv.split(tensors[f"{name}.weight"], geometry.full, geometry.qkv_chunks)
    assert torch.equal(ignored.weight[: 8 * 192], q[5 * 8 * 192 : 6 * 8 * 192])
