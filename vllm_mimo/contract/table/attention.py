"""Attention layers, and the backends below them."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_ATTENTION = ("vllm.model_executor.layers.attention",)
_BACKEND = ("vllm.v1.attention.backend",)
_REGISTRY = ("vllm.v1.attention.backends.registry",)
_CPU_ATTN = ("vllm.v1.attention.backends.cpu_attn",)
_FLASH_DIFFKV = ("vllm.v1.attention.backends.flash_attn_diffkv",)
_TRITON_DIFFKV = ("vllm.v1.attention.backends.triton_attn_diffkv",)
_LAYER = "vllm_mimo.attention.layer"

ATTENTION_ENTRIES = (
    Entry(
        _ATTENTION,
        "Attention.__init__",
        used_by=_LAYER,
        why="attention layers of the served model",
        parameters=(
            "num_heads",
            "head_size",
            "scale",
            "num_kv_heads",
            "cache_config",
            "quant_config",
            "per_layer_sliding_window",
            "prefix",
            "attn_type",
            "attn_backend",
            "head_size_v",
        ),
    ),
    Entry(
        _ATTENTION,
        "Attention.forward",
        used_by=_LAYER,
        why="values are padded to the key's width around it",
        parameters=("query", "key", "value"),
    ),
    Entry(
        _ATTENTION,
        "Attention",
        used_by=_LAYER,
        why="shapes of this rank's heads",
        attributes=("num_heads", "num_kv_heads", "head_size"),
    ),
    Entry(
        _BACKEND,
        "AttentionBackend",
        used_by=_LAYER,
        why="type of the backend that a layer is given",
    ),
    Entry(
        _BACKEND,
        "AttentionType",
        used_by=_LAYER,
        why="kind of attention",
        attributes=("DECODER",),
    ),
    Entry(
        _REGISTRY,
        "AttentionBackendEnum",
        used_by=_LAYER,
        why="names of the backends that a layer is given",
        attributes=("CPU_ATTN", "TRITON_ATTN_DIFFKV", "FLASH_ATTN_DIFFKV", "get_class"),
    ),
    Entry(
        _REGISTRY,
        "register_backend",
        used_by=_LAYER,
        why="how another backend may take the place of one that a layer asks for",
        parameters=("backend", "class_path"),
    ),
    Entry(
        _FLASH_DIFFKV,
        "FlashAttentionDiffKVBackend.is_supported_on_current_device",
        used_by=_LAYER,
        why="FlashAttention where the GPU has it",
        parameters=("head_size", "head_size_v", "has_sinks"),
    ),
    Entry(
        _FLASH_DIFFKV,
        "FlashAttentionDiffKVBackend.set_head_size_v",
        used_by=_LAYER,
        why="width of a value head on GPUs",
        parameters=("head_size_v",),
    ),
    Entry(
        _TRITON_DIFFKV,
        "TritonAttentionDiffKVBackend.set_head_size_v",
        used_by=_LAYER,
        why="width of a value head on GPUs",
        parameters=("head_size_v",),
    ),
    Entry(
        _CPU_ATTN,
        "CPUAttentionBackend",
        used_by=_LAYER,
        why="the backend on CPUs",
        attributes=("get_name", "get_impl_cls", "get_builder_cls", "get_supported_head_sizes"),
    ),
    Entry(
        _CPU_ATTN,
        "CPUAttentionBackendImpl.__init__",
        used_by=_LAYER,
        why="takes the sinks that a layer is given as an extra argument",
        parameters=(
            "num_heads",
            "head_size",
            "scale",
            "num_kv_heads",
            "alibi_slopes",
            "sliding_window",
            "kv_cache_dtype",
            "logits_soft_cap",
            "attn_type",
            "kv_sharing_target_layer_name",
            "sinks",
        ),
    ),
    Entry(
        _CPU_ATTN,
        "CPUAttentionBackendImpl.forward",
        used_by=_LAYER,
        why="attention on CPUs",
        parameters=("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
    ),
    Entry(
        _CPU_ATTN,
        "CPUAttentionBackendImpl.do_kv_cache_update",
        used_by=_LAYER,
        why="stores padded values on CPUs",
        parameters=("layer", "key", "value", "kv_cache", "slot_mapping"),
    ),
    Entry(
        _CPU_ATTN,
        "CPUAttentionMetadataBuilder.__init__",
        used_by=_LAYER,
        why="metadata of a step on CPUs",
        parameters=("kv_cache_spec", "layer_names", "vllm_config", "device"),
    ),
)
