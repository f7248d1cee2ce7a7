"""The shape of a MiMo-V2 text model, read once from its config.

Every other module asks this one instead of reading config fields, so that a field's name, default
and meaning stand in one place. Sources: the configs of MiMo-V2-Flash, MiMo-V2.5 and MiMo-V2.5-Pro.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARCHITECTURES = ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM")
"""Architecture names of the family. vLLM renames V2.5 with a vision tower to the third."""

DEFAULT_MTP_LAYERS = 3
"""MTP layers are visible only in the weights of the real checkpoints; all of them have three."""


class GeometryError(ValueError):
    """A config that lacks a field or contradicts itself; the message names the field."""


@dataclass(frozen=True, slots=True)
class AttentionGeometry:
    """Heads of one kind of attention layer (full or sliding window), before tensor parallelism."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Width of a query or key head (192 in the real models)."""
    v_head_dim: int
    """Width of a value head (128 in the real models)."""
    rope_theta: float
    window: int | None
    """Keys a query sees, itself included; None for full attention."""
    has_sink: bool
    """Whether a learned logit per query head joins the softmax's denominator."""

    @property
    def q_rows(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def k_rows(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def v_rows(self) -> int:
        return self.num_kv_heads * self.v_head_dim

    @property
    def qkv_rows(self) -> int:
        return self.q_rows + self.k_rows + self.v_rows

    @property
    def o_columns(self) -> int:
        """Input width of `o_proj`."""
        return self.num_heads * self.v_head_dim


@dataclass(frozen=True, slots=True)
class TextGeometry:
    """A MiMo-V2 text model's shape. Build it with `from_config`."""

    hidden_size: int
    vocab_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    experts_per_token: int
    full: AttentionGeometry
    swa: AttentionGeometry
    layer_is_swa: tuple[bool, ...]
    layer_is_moe: tuple[bool, ...]
    rotary_factor: float
    value_scale: float
    norm_eps: float
    normalize_topk: bool
    num_mtp_layers: int
    fused_qkv: bool
    """One `qkv_proj` per layer in chunks of [Q | K | V] (V2.5, Pro) or three tensors (Flash)."""
    qkv_chunks: int
    """Chunks in a fused `qkv_proj`: the config's `num_key_value_heads`, also for SWA layers."""
    fp8_block: tuple[int, int] | None
    """Rows and columns of one FP8 scale block, or None for an unquantised checkpoint."""
    qk_bias: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layer_is_swa)

    def attention(self, layer: int) -> AttentionGeometry:
        """The attention geometry of decoder layer `layer` (MTP layers all use `swa`)."""
        return self.swa if self.layer_is_swa[layer] else self.full

    @classmethod
    def from_config(cls, config: Any) -> TextGeometry:
        """Read a config.json dict or a `transformers` config object.

        Raises GeometryError naming the field that is missing or wrong.
        """
        if not isinstance(config, Mapping):
            config = {**config.to_dict(), **_visible_attributes(config)}

        def need(name: str) -> Any:
            if config.get(name) is None:
                raise GeometryError(f"config field '{name}' is missing: not a MiMo-V2 config.json?")
            return config[name]

        def of_moe(name: str) -> int:  # a model of dense layers needs none of these
            return int(need(name) if any(moe) else config.get(name) or 0)

        layers = int(need("num_hidden_layers"))
        pattern = tuple(bool(x) for x in need("hybrid_layer_pattern"))
        moe = tuple(bool(x) for x in need("moe_layer_freq"))
        for name, value in (("hybrid_layer_pattern", pattern), ("moe_layer_freq", moe)):
            if len(value) != layers:
                raise GeometryError(
                    f"config field '{name}' has {len(value)} entries, "
                    f"'num_hidden_layers' is {layers}"
                )
        full = AttentionGeometry(
            num_heads=int(need("num_attention_heads")),
            num_kv_heads=int(need("num_key_value_heads")),
            head_dim=int(need("head_dim")),
            v_head_dim=int(config.get("v_head_dim") or need("head_dim")),
            rope_theta=float(need("rope_theta")),
            window=None,
            has_sink=bool(config.get("add_full_attention_sink_bias", False)),
        )
        swa = AttentionGeometry(
            num_heads=int(need("swa_num_attention_heads")),
            num_kv_heads=int(need("swa_num_key_value_heads")),
            head_dim=int(need("swa_head_dim")),
            v_head_dim=int(config.get("swa_v_head_dim") or need("swa_head_dim")),
            rope_theta=float(config.get("swa_rope_theta") or need("rope_theta")),
            window=int(config.get("sliding_window_size") or need("sliding_window")),
            has_sink=bool(config.get("add_swa_attention_sink_bias", False)),
        )
        for kind, geo in (("full", full), ("SWA", swa)):
            if geo.num_heads % geo.num_kv_heads:
                raise GeometryError(
                    f"{kind} attention has {geo.num_heads} query heads, "
                    f"not a multiple of its {geo.num_kv_heads} KV heads"
                )
        quantization = config.get("quantization_config") or {}
        block = quantization.get("weight_block_size")
        return cls(
            hidden_size=int(need("hidden_size")),
            vocab_size=int(need("vocab_size")),
            intermediate_size=int(need("intermediate_size")),
            moe_intermediate_size=of_moe("moe_intermediate_size"),
            num_experts=of_moe("n_routed_experts"),
            experts_per_token=of_moe("num_experts_per_tok"),
            full=full,
            swa=swa,
            layer_is_swa=pattern,
            layer_is_moe=moe,
            rotary_factor=float(config.get("partial_rotary_factor", 1.0)),
            value_scale=float(config.get("attention_value_scale") or 1.0),
            norm_eps=float(config.get("layernorm_epsilon") or config.get("rms_norm_eps") or 1e-5),
            normalize_topk=bool(config.get("norm_topk_prob", True)),
            num_mtp_layers=int(config.get("num_nextn_predict_layers") or DEFAULT_MTP_LAYERS),
            fused_qkv=config.get("attention_projection_layout") == "fused_qkv",
            qkv_chunks=int(need("num_key_value_heads")),
            fp8_block=(int(block[0]), int(block[1])) if block else None,
            qk_bias=bool(config.get("attention_bias", False)),
        )


def _visible_attributes(config: Any) -> dict[str, Any]:
    """Fields that a config object keeps as attributes but leaves out of `to_dict`."""
    names = ("rope_theta", "swa_rope_theta", "partial_rotary_factor", "quantization_config")
    return {n: getattr(config, n) for n in names if getattr(config, n, None) is not None}
