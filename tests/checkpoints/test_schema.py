"""The schema against the real checkpoints' weight tables, and against what the writer writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.paths import real_config
from vllm_mimo.checkpoints.geometry import GeometryError, TextGeometry
from vllm_mimo.checkpoints.schema import ignored_modules, is_described, text_tensors
from vllm_mimo.checkpoints.towers import all_tensors
from vllm_mimo.checkpoints.verify import verify_folder, weight_files
from vllm_mimo.tiny.checkpoints import write_random
from vllm_mimo.tiny.shapes import LAYOUTS

# Text and MTP tensors, and their elements, of the real checkpoints (public weight tables; V2.5's
# without its vision and audio towers).
REAL = {
    "MiMo-V2.5": (72_622, 309_785_318_400),
    "MiMo-V2.5-Pro": (159_581, 1_023_244_718_976),
}


def test_only_quantisations_with_known_tensors_are_described():
    section = real_config("MiMo-V2.5")["quantization_config"]
    assert is_described({"quantization_config": section})
    assert is_described({"quantization_config": None})
    for other in ({"store_dtype": "mxfp4"}, {"quant_method": "awq"}, {"weight_block_size": None}):
        assert not is_described({"quantization_config": {**section, **other}})


@pytest.mark.parametrize("name", REAL)
def test_tensors_of_the_real_checkpoints(name: str):
    config = real_config(name)
    specs = list(text_tensors(TextGeometry.from_config(config), ignored_modules(config)))
    assert (len(specs), sum(math.prod(s.shape) for s in specs)) == REAL[name]
    assert len({s.name for s in specs}) == len(specs)


def test_shapes_of_v25s_fused_projections():
    config = real_config("MiMo-V2.5")
    specs = {
        s.name: s for s in text_tensors(TextGeometry.from_config(config), ignored_modules(config))
    }
    full, swa = "model.layers.0.self_attn", "model.layers.1.self_attn"
    assert specs[f"{full}.qkv_proj.weight"].shape == (13_568, 4096)
    assert specs[f"{full}.qkv_proj.weight_scale_inv"].shape == (108, 32)
    assert specs[f"{swa}.qkv_proj.weight"].shape == (14_848, 4096)
    assert specs[f"{swa}.qkv_proj.weight_scale_inv"].shape == (116, 32)
    assert specs[f"{swa}.attention_sink_bias"].shape == (64,)
    assert f"{full}.attention_sink_bias" not in specs
    assert specs[f"{full}.o_proj.weight"].kind == "bf16"


@pytest.mark.parametrize("fp8", (False, True), ids=("bf16", "fp8"))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_writer_writes_the_schema_and_the_same_bytes_again(
    layout: str, fp8: bool, tmp_path: Path
):
    size = write_random(tmp_path / "a", layout, fp8, seed=3)
    write_random(tmp_path / "b", layout, fp8, seed=3)
    write_random(tmp_path / "c", layout, fp8, seed=4)
    assert size < 14e6
    count = verify_folder(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert count == len(list(all_tensors(config)))
    first, again, other = (
        [path.read_bytes() for path in sorted((tmp_path / x).rglob("*.safetensors"))] for x in "abc"
    )
    assert first == again
    assert first != other
    kinds = {"bf16": "bfloat16", "f32": "float32", "scale": "float32", "fp8": "float8_e4m3fn"}
    specs = {s.name: s for s in all_tensors(config)}
    for path in weight_files(tmp_path / "a"):
        for name, tensor in load_file(path).items():
            assert str(tensor.dtype) == f"torch.{kinds[specs[name].kind]}", name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hybrid_layer_pattern": None}, "hybrid_layer_pattern"),
        ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ({"moe_layer_freq": [0]}, "moe_layer_freq"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"rope_theta": None}, "rope_theta"),
    ],
)
def test_a_broken_config_is_refused_by_name(change: dict, named: str):
    with pytest.raises(GeometryError, match=named):
        TextGeometry.from_config({**real_config("MiMo-V2.5"), **change})
