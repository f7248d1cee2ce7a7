"""Every rank's parameters equal the checkpoint's own rows, for TP 1 to 16, bf16 and block FP8."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.loader.conftest import Build, as_rank, engine_config, narrow_config
from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.fp8 import dequantize
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.tiny.write import random_state, to_layout

MODELS = ("MiMo-V2.5", "MiMo-V2.5-Pro", "MiMo-V2-Flash")
RANKS = (1, 2, 4, 8, 16)
BLOCK = (128, 128)


class Checkpoint:
    """A synthetic checkpoint: its tensors, and the values they stand for under split names."""

    def __init__(self, name: str, fp8: bool) -> None:
        self.config = narrow_config(name, fp8)
        self.geometry = TextGeometry.from_config(self.config)
        split = random_state(self.geometry, seed=1)
        self.tensors = dict(to_layout(self.config, split))
        self.values = dict(self._values())

    def _values(self):
        """What each stored tensor means, de-quantised with its own scales."""
        for name, tensor in self.tensors.items():
            if name.endswith("weight_scale_inv"):
                continue
            if tensor.dtype == torch.float8_e4m3fn:
                scale = self.tensors[name.removesuffix("weight") + "weight_scale_inv"]
                tiles = self.geometry.qkv_chunks if "qkv_proj" in name else 1
                tensor = dequantize(tensor, scale, BLOCK, tiles)
            if "qkv_proj" in name:
                layer = name.split(".")
                geo = (
                    self.geometry.swa
                    if layer[1] == "mtp"
                    else self.geometry.attention(int(layer[2]))
                )
                parts = qkv.split(tensor, geo, self.geometry.qkv_chunks)
                for x, part in zip("qkv", parts, strict=True):
                    yield name.replace("qkv_proj", f"{x}_proj"), part
            else:
                yield name, tensor


@pytest.mark.parametrize("fp8", (False, True), ids=("bf16", "fp8"))
@pytest.mark.parametrize("name", MODELS)
def test_every_rank_holds_exactly_its_rows(name: str, fp8: bool, tmp_path: Path, build: Build):
    checkpoint = Checkpoint(name, fp8)
    vllm_config = engine_config(tmp_path, checkpoint.config)
    for ranks in RANKS:
        for rank in range(ranks):
            model = build(vllm_config, rank, ranks)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dtype.is_floating_point and parameter.dtype.itemsize > 1:
                        parameter.fill_(float("nan"))
            with as_rank(rank, ranks):
                model.load_weights(iter(checkpoint.tensors.items()))
            compare(model, checkpoint, rank, ranks)


def test_a_wrong_row_is_noticed(tmp_path: Path, build: Build):
    checkpoint = Checkpoint("MiMo-V2.5", True)
    model = build(engine_config(tmp_path, checkpoint.config), 3, 8)
    with as_rank(3, 8):
        model.load_weights(iter(checkpoint.tensors.items()))
    scale = model.model.layers[0].self_attn.qkv_proj.weight_scale_inv
    scale.data[-1] *= 2
    with pytest.raises(AssertionError, match="v_proj"):
        compare(model, checkpoint, 3, 8)


def compare(model: torch.nn.Module, checkpoint: Checkpoint, rank: int, ranks: int) -> None:
    """Compare all parameters of a loaded rank with the checkpoint's values."""
    got = dict(model.named_parameters())
    values = checkpoint.values

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x.chunk(ranks, 0)[rank]

    def columns(x: torch.Tensor) -> torch.Tensor:
        return x.chunk(ranks, 1)[rank]

    def same(what: str, a: torch.Tensor, b: torch.Tensor) -> None:
        assert torch.equal(a.float(), b.float()), f"{what} differs on rank {rank} of {ranks}"

    def weight(prefix: str) -> torch.Tensor:
        """A loaded linear weight, de-quantised where it is in FP8."""
        if f"{prefix}.weight_scale_inv" in got:
            return dequantize(got[f"{prefix}.weight"], got[f"{prefix}.weight_scale_inv"], BLOCK)
        return got[f"{prefix}.weight"]

    for layer in range(checkpoint.geometry.num_layers):
        geo = checkpoint.geometry.attention(layer)
        prefix = f"model.layers.{layer}"
        attention = model.model.layers[layer].self_attn
        heads = qkv.rank_heads(geo, rank, ranks)
        q, k, v = (x.T for x in attention.qkv_proj.split(weight(f"{prefix}.self_attn.qkv_proj").T))
        for part, loaded, own, width in (
            ("q_proj", q, heads.q, geo.head_dim),
            ("k_proj", k, heads.kv, geo.head_dim),
            ("v_proj", v, heads.kv, geo.v_head_dim),
        ):
            full = values[f"{prefix}.self_attn.{part}.weight"]
            same(f"layer {layer} {part}", loaded, full[own.start * width : own.stop * width])
        o_proj = f"{prefix}.self_attn.o_proj"
        same(o_proj, weight(o_proj), columns(values[f"{o_proj}.weight"]))
        if geo.has_sink:
            sink = f"{prefix}.self_attn.attention_sink_bias"
            same(sink, got[sink], rows(values[sink]))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            name = f"{prefix}.{norm}.weight"
            same(name, got[name], values[name])
    dense = "model.layers.0.mlp"
    gate_up = torch.cat([rows(values[f"{dense}.{x}_proj.weight"]) for x in ("gate", "up")])
    same("dense gate and up", weight(f"{dense}.gate_up_proj"), gate_up)
    same("dense down", weight(f"{dense}.down_proj"), columns(values[f"{dense}.down_proj.weight"]))
    compare_experts(got, values, same, rows, columns)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        same(name, got[name][: 512 // ranks], rows(values[name]))
    same("final norm", got["model.norm.weight"], values["model.norm.weight"])


def compare_experts(got: dict, values: dict, same, rows, columns) -> None:
    """Compare the routed experts and the router of layer 1."""
    moe = "model.layers.1.mlp"
    stacked = {k.rpartition(".")[2]: v for k, v in got.items() if k.startswith(f"{moe}.experts.")}
    for expert in (0, 15):
        source = f"{moe}.experts.{expert}"
        w13 = torch.cat([rows(values[f"{source}.{x}_proj.weight"]) for x in ("gate", "up")])
        w2 = columns(values[f"{source}.down_proj.weight"])
        for name, expected in (("w13_weight", w13), ("w2_weight", w2)):
            loaded = stacked[name][expert]
            if f"{name}_scale_inv" in stacked:
                loaded = dequantize(loaded, stacked[f"{name}_scale_inv"][expert], BLOCK)
            same(f"expert {expert} {name}", loaded, expected)
    same("router", got[f"{moe}.gate.weight"], values[f"{moe}.gate.weight"])
    bias = f"{moe}.gate.e_score_correction_bias"
    same("router bias", got[bias], values[bias])
