"""Names and shapes of the tensors in a MiMo-V2 checkpoint, from its geometry alone.

The tiny-checkpoint writer, the loader's check and the planner's byte count all read this one list.
Verified against the weight tables of MiMo-V2.5 (73,081 tensors with its towers) and V2.5-Pro.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from vllm_mimo.checkpoints.fp8 import scale_rows
from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.checkpoints.qkv import check_chunks

Kind = Literal["bf16", "f32", "fp8", "scale"]

_FIRST_OF_TOWER = {
    "visual.": "visual.patch_embed.proj.weight",
    "audio_encoder.": "speech_embeddings.0.weight",
    "speech_embeddings.": "speech_embeddings.0.weight",
    "audio_tokenizer.": "",
}
"""For each prefix of tower tensors a name that every list of that tower has (`towers` lists them;
the audio tokenizer is a checkpoint of its own)."""

TOWER_PREFIXES = tuple(_FIRST_OF_TOWER)
"""What names of the vision and audio towers' tensors begin with."""

MTP_PREFIX = "model.mtp."


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Allowed shapes, the usual one first (a fused scale grid may restart at chunks or not)."""
    kind: Kind
    optional: bool = False
    """Whether nothing reads it, so that a checkpoint may lack it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[0]

    @property
    def mtp(self) -> bool:
        """Whether it belongs to the MTP layers, which a checkpoint may lack as a whole."""
        return self.name.startswith(MTP_PREFIX)


def is_left_alone(name: str, specs: Collection[str]) -> bool:
    """Whether a tensor belongs to a tower that `specs` does not describe at all."""
    return any(
        name.startswith(prefix) and first not in specs for prefix, first in _FIRST_OF_TOWER.items()
    )


def ignored_modules(config: Any) -> frozenset[str]:
    """Modules that the config's FP8 section leaves unquantised. `config` is a dict."""
    return frozenset((config.get("quantization_config") or {}).get("ignored_layers") or ())


def is_described(config: Any) -> bool:
    """Whether this schema knows the quantisation of a config.json dict: none, or block FP8.

    Others (MXFP4 experts, say) store other tensors under other names.
    """
    section = config.get("quantization_config") or {}
    block_fp8 = section.get("quant_method") == "fp8" and bool(section.get("weight_block_size"))
    return not section or (block_fp8 and section.get("store_dtype", "fp8") == "fp8")


def text_tensors(geometry: TextGeometry, ignored: Collection[str] = ()) -> Iterator[TensorSpec]:
    """Every tensor of the text model and its MTP layers, in layer order.

    Args:
        geometry: from the checkpoint's config.
        ignored: modules stored in bf16 in spite of FP8 (`ignored_modules`).
    """
    maker = _Maker(geometry, frozenset(ignored))
    hidden, vocab = geometry.hidden_size, geometry.vocab_size
    yield maker.plain("model.embed_tokens.weight", vocab, hidden)
    for layer in range(geometry.num_layers):
        prefix = f"model.layers.{layer}"
        yield maker.plain(f"{prefix}.input_layernorm.weight", hidden)
        yield from maker.attention(f"{prefix}.self_attn", geometry.attention(layer))
        yield maker.plain(f"{prefix}.post_attention_layernorm.weight", hidden)
        if geometry.layer_is_moe[layer]:
            experts = geometry.num_experts
            yield TensorSpec(f"{prefix}.mlp.gate.weight", ((experts, hidden),), "f32")
            yield TensorSpec(f"{prefix}.mlp.gate.e_score_correction_bias", ((experts,),), "f32")
            for expert in range(experts):
                yield from maker.mlp(
                    f"{prefix}.mlp.experts.{expert}", geometry.moe_intermediate_size
                )
        else:
            yield from maker.mlp(f"{prefix}.mlp", geometry.intermediate_size)
    yield maker.plain("model.norm.weight", hidden)
    for layer in range(geometry.num_mtp_layers):
        prefix = f"{MTP_PREFIX}layers.{layer}"
        for norm in ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm"):
            yield maker.plain(f"{prefix}.{norm}.weight", hidden)
        yield maker.plain(f"{prefix}.eh_proj.weight", hidden, 2 * hidden)
        yield from maker.attention(f"{prefix}.self_attn", geometry.swa)
        yield from maker.mlp(f"{prefix}.mlp", geometry.intermediate_size)
    yield maker.plain("lm_head.weight", vocab, hidden)


class _Maker:
    """Specs of linear weights, with scales where they are quantised."""

    def __init__(self, geometry: TextGeometry, ignored: frozenset[str]) -> None:
        self.geometry, self.ignored = geometry, ignored

    def plain(self, name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, (shape,), "bf16")

    def linear(self, module: str, rows: int, columns: int, tiles: int = 1) -> Iterator[TensorSpec]:
        block = self.geometry.fp8_block
        if block is None or module in self.ignored:
            yield self.plain(f"{module}.weight", rows, columns)
            return
        yield TensorSpec(f"{module}.weight", ((rows, columns),), "fp8")
        column_blocks = -(-columns // block[1])
        grids = dict.fromkeys((scale_rows(rows, block[0], tiles), scale_rows(rows, block[0])))
        shapes = tuple((grid, column_blocks) for grid in grids)
        yield TensorSpec(f"{module}.weight_scale_inv", shapes, "scale")

    def mlp(self, prefix: str, inner: int) -> Iterator[TensorSpec]:
        hidden = self.geometry.hidden_size
        yield from self.linear(f"{prefix}.gate_proj", inner, hidden)
        yield from self.linear(f"{prefix}.up_proj", inner, hidden)
        yield from self.linear(f"{prefix}.down_proj", hidden, inner)

    def attention(self, prefix: str, geo: AttentionGeometry) -> Iterator[TensorSpec]:
        model = self.geometry
        if model.fused_qkv:
            check_chunks(geo, model.qkv_chunks)
            projections = [("qkv_proj", geo.qkv_rows, model.qkv_chunks)]
        else:
            projections = [
                ("q_proj", geo.q_rows, 1),
                ("k_proj", geo.k_rows, 1),
                ("v_proj", geo.v_rows, 1),
            ]
        for name, rows, tiles in projections:
            yield from self.linear(f"{prefix}.{name}", rows, model.hidden_size, tiles)
            if model.qk_bias:
                yield self.plain(f"{prefix}.{name}.bias", rows)
        if geo.has_sink:
            yield self.plain(f"{prefix}.attention_sink_bias", geo.num_heads)
        if prefix.startswith(MTP_PREFIX):
            yield self.plain(f"{prefix}.o_proj.weight", model.hidden_size, geo.o_columns)
        else:
            yield from self.linear(f"{prefix}.o_proj", model.hidden_size, geo.o_columns)
