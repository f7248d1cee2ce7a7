"""config.json of tiny MiMo models, with every field of the real ones that shapes the model."""

from __future__ import annotations

from typing import Any, Literal

from tokenizers import Tokenizer

from vllm_mimo.tiny.media import media_sections

Layout = Literal["flash", "v2.5", "pro"]
LAYOUTS: tuple[Layout, ...] = ("flash", "v2.5", "pro")

WITH_TOWERS: tuple[Layout, ...] = ("v2.5",)
"""Layouts whose real checkpoints see and hear."""

HYBRID_PATTERN = (0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0)
"""The first twelve entries of V2.5's own pattern: 0 full attention, 1 sliding window."""

_LAYOUT_FIELDS: dict[Layout, dict[str, Any]] = {
    "flash": {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "rope_theta": 5_000_000,
        "attention_value_scale": 0.707,
    },
    "v2.5": {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2",
        "rope_theta": 10_000_000,
        "attention_value_scale": 0.707,
        "attention_projection_layout": "fused_qkv",
    },
    "pro": {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2",
        "rope_theta": 10_000_000,
        "attention_value_scale": 0.612,
        "attention_projection_layout": "fused_qkv",
    },
}

_COMMON: dict[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": 128,
    "attention_dropout": 0.0,
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "layernorm_epsilon": 1e-05,
    "n_group": 1,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.334,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_rope_theta": 10_000,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_cache": True,
}

RANDOM_SIZES: dict[Layout, dict[str, int]] = {
    "flash": {"heads": 4, "num_key_value_heads": 2, "swa_num_key_value_heads": 4},
    "v2.5": {"heads": 4, "num_key_value_heads": 2, "swa_num_key_value_heads": 4},
    "pro": {"heads": 8, "num_key_value_heads": 4, "swa_num_key_value_heads": 4},
}
"""Heads: twice the KV heads in SWA layers, as in Flash and V2.5, or as many, as in Pro. A full
layer's chunk is 704 rows, five and a half scale blocks, as a real one ends on half a block."""


def _sizes(
    pattern: tuple[int, ...], heads: int, head_dim: int, v_head_dim: int, **more: int
) -> dict[str, Any]:
    return {
        "num_hidden_layers": len(pattern),
        "hybrid_layer_pattern": list(pattern),
        "moe_layer_freq": [0] + [1] * (len(pattern) - 1),
        "num_attention_heads": heads,
        "swa_num_attention_heads": heads,
        "head_dim": head_dim,
        "swa_head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "swa_v_head_dim": v_head_dim,
        **more,
    }


def random_config(
    layout: Layout, tokenizer: Tokenizer, fp8: bool, towers: bool = False
) -> dict[str, Any]:
    """Real head sizes (K 192, V 128), few layers: what `vllm-mimo tiny` writes."""
    sizes = _sizes(
        (0, 1, 1, 1, 1, 0),
        head_dim=192,
        v_head_dim=128,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=128,
        n_routed_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=8192,
        **RANDOM_SIZES[layout],
    )
    config = _assemble(layout, tokenizer, sizes)
    if fp8:
        ignored = [f"model.layers.{i}.self_attn.o_proj" for i in range(config["num_hidden_layers"])]
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "ignored_layers": [*ignored, "model.decoder.self_attn.o_proj"],
            "weight_block_size": [128, 128],
        }
    return with_towers(config, tokenizer) if towers else config


def with_towers(config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """A config and the sections about the towers, its own fields first."""
    return {**config, **media_sections(config["hidden_size"], tokenizer)}


def trained_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The model that `examples/train_tiny.py` trains: `assets/mimo-tiny` without its towers."""
    sizes = _sizes(
        HYBRID_PATTERN,
        heads=8,
        head_dim=32,
        v_head_dim=24,
        hidden_size=128,
        intermediate_size=384,
        moe_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        num_key_value_heads=2,
        swa_num_key_value_heads=4,
        max_position_embeddings=32768,
    )
    return _assemble("v2.5", tokenizer, sizes)


def _assemble(layout: Layout, tokenizer: Tokenizer, sizes: dict[str, Any]) -> dict[str, Any]:
    ids = {
        "eos_token_id": "<|im_end|>",
        "pad_token_id": "<|endoftext|>",
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {
        **_LAYOUT_FIELDS[layout],
        **_COMMON,
        **sizes,
        **{name: tokenizer.token_to_id(token) for name, token in ids.items()},
        "vocab_size": tokenizer.get_vocab_size(),
        "transformers_version": "4.57.1",
    }
