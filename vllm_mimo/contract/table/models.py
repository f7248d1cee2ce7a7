"""Model classes of the MiMo-V2 family: what ours derive from, build, or stand in for."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_MIMO = ("vllm.model_executor.models.mimo_v2",)
_MIMO_MTP = ("vllm.model_executor.models.mimo_v2_mtp",)
_TEXT = "vllm_mimo.models.text"

MODEL_ENTRIES = (
    Entry(
        _MIMO,
        "MiMoV2FlashForCausalLM.__init__",
        used_by=_TEXT,
        why="base class of the served model, and what serves when the plugin is off",
        parameters=("vllm_config", "prefix"),
        overrides=True,
    ),
    Entry(
        _MIMO,
        "MiMoV2FlashForCausalLM.load_weights",
        used_by=_TEXT,
        why="tensors are checked on their way in",
        parameters=("weights",),
        overrides=True,
    ),
    Entry(
        _MIMO,
        "MiMoV2ForCausalLM",
        used_by=_TEXT,
        why="serves V2.5 when the plugin is off",
        attributes=("load_weights", "forward", "compute_logits", "packed_modules_mapping"),
    ),
    Entry(
        _MIMO,
        "MiMoV2Model.__init__",
        used_by=_TEXT,
        why="base class of the model loop",
        parameters=("vllm_config", "prefix"),
        overrides=True,
    ),
    Entry(
        _MIMO,
        "MiMoV2Model.load_weights",
        used_by=_TEXT,
        why="fused and FP8 projections are loaded first, the rest by vLLM",
        parameters=("weights",),
        overrides=True,
    ),
    Entry(
        _MIMO,
        "MiMoV2FlashDecoderLayer.__init__",
        used_by=_TEXT,
        why="base class of a layer",
        parameters=("vllm_config", "prefix"),
        overrides=True,
    ),
    Entry(
        _MIMO,
        "MiMoV2Attention.__init__",
        used_by=_TEXT,
        why="our attention module stands in for it, so what it learns ours must learn",
        parameters=(
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "v_head_dim",
            "v_scale",
            "sliding_window_size",
            "attention_bias",
            "add_swa_attention_sink_bias",
            "layer_id",
            "rope_theta",
            "max_position_embeddings",
            "cache_config",
            "quant_config",
            "partial_rotary_factor",
            "prefix",
        ),
    ),
    Entry(
        _MIMO,
        "MiMoV2MoE.__init__",
        used_by=_TEXT,
        why="experts of a layer",
        parameters=("vllm_config", "prefix"),
    ),
    Entry(
        _MIMO,
        "MiMoV2MLP.__init__",
        used_by=_TEXT,
        why="dense MLP of a layer",
        parameters=("hidden_size", "intermediate_size", "hidden_act", "quant_config", "prefix"),
    ),
    Entry(
        _MIMO_MTP,
        "MiMoV2MTP.__init__",
        used_by=_TEXT,
        why="vLLM's draft model runs beside our model",
        parameters=("vllm_config", "prefix"),
    ),
    Entry(
        _MIMO_MTP,
        "MiMoV2MTP.load_weights",
        used_by=_TEXT,
        why="vLLM's draft model reads the same checkpoint",
        parameters=("weights",),
    ),
    Entry(
        _MIMO_MTP,
        "MiMoV2MTPLayer.__init__",
        used_by=_TEXT,
        why="a layer of vLLM's draft model",
        parameters=("config", "prefix", "cache_config", "quant_config"),
    ),
)
