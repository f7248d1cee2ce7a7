"""KV cache specs, groups and configs, and where the engine plans them."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_INTERFACE = ("vllm.v1.kv_cache_interface",)
_PLANNING = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
_UTILS = ("vllm.v1.core.kv_cache_utils",)
_OURS = "vllm_mimo.kv.planning"
_SPEC = "vllm_mimo.kv.spec"
_HOOK = "vllm_mimo.hooks.kv_planning"
_REPLAY = "vllm_mimo.replay.vllm_policy"

KV_PLANNING_ENTRIES = (
    Entry(
        ("vllm.v1.engine.core",),
        "get_kv_cache_configs",
        used_by=_HOOK,
        why="wrapped: the engine core plans through this name; 0.33 passes the groups too",
    ),
    Entry(
        ("vllm.v1.engine",),
        "core",
        used_by=_HOOK,
        why="the module whose name for the planning is replaced",
    ),
    Entry(
        ("vllm.v1.core",),
        "kv_cache_utils.get_max_concurrency_for_kv_cache_config",
        used_by=_HOOK,
        why="wrapped: start-up reports the concurrency through this name",
        parameters=("vllm_config", "kv_cache_config"),
        overrides=True,
    ),
    Entry(
        _PLANNING,
        "kv_cache_groups_tp_replicas",
        used_by=_OURS,
        why="a field of each worker's config",
        parameters=("groups", "tp_size", "dcp_size"),
    ),
    Entry(
        _PLANNING,
        "get_kv_cache_groups",
        used_by=_REPLAY,
        why="vLLM's own plan, to compare with",
        parameters=("vllm_config", "kv_cache_spec"),
    ),
    Entry(
        _PLANNING,
        "get_kv_cache_config_from_groups",
        used_by=_REPLAY,
        why="vLLM's own plan, to compare with",
        parameters=("vllm_config", "kv_cache_groups", "available_memory"),
    ),
    Entry(
        _UTILS,
        "resolve_kv_cache_block_sizes",
        used_by=_REPLAY,
        why="vLLM's own plan, to compare with",
        parameters=("kv_cache_config", "vllm_config"),
    ),
    Entry(
        _UTILS,
        "get_group_id",
        used_by="vllm_mimo.replay.driver",
        why="which group an evicted block was of",
        parameters=("key",),
    ),
    Entry(
        _UTILS,
        "get_block_hash",
        used_by="vllm_mimo.kv.manager",
        why="the hash of an evicted block, without its group",
        parameters=("key",),
    ),
    Entry(
        _INTERFACE,
        "KVCacheSpec",
        used_by=_OURS,
        why="what a layer keeps",
        attributes=("block_size", "page_size_bytes", "get_block_stride_alignment"),
    ),
    Entry(
        _INTERFACE,
        "FullAttentionSpec",
        used_by=_SPEC,
        why="base class of the full pool's spec, copied field by field",
        attributes=(
            "block_size",
            "num_kv_heads",
            "head_size",
            "head_size_v",
            "dtype",
            "page_size_bytes",
        ),
    ),
    Entry(
        _INTERFACE,
        "SlidingWindowSpec",
        used_by=_SPEC,
        why="base class of the SWA pool's spec, copied field by field",
        attributes=(
            "block_size",
            "num_kv_heads",
            "head_size",
            "head_size_v",
            "dtype",
            "sliding_window",
            "extra_retained_tokens",
            "page_size_bytes",
        ),
    ),
    Entry(
        _INTERFACE,
        "KVCacheTensor",
        used_by=_OURS,
        why="where a group's layers are in the buffer",
        attributes=("size", "layers", "layer_stride", "block_stride", "offset"),
    ),
    Entry(
        _INTERFACE,
        "KVCacheGroupSpec",
        used_by=_OURS,
        why="layers that share block tables",
        attributes=("layer_names", "kv_cache_spec", "is_eagle_group"),
    ),
    Entry(
        _INTERFACE,
        "KVCacheConfig",
        used_by=_SPEC,
        why="base class of a worker's config",
        attributes=(
            "num_blocks",
            "kv_cache_tensors",
            "kv_cache_groups",
            "prefix_cache_retention_interval",
            "kv_tp_replicas",
        ),
    ),
    Entry(
        _INTERFACE,
        "KVCacheConfig.needs_kv_cache_zeroing",
        used_by=_SPEC,
        why="overridden: zeroing goes by block id, which two pools share",
    ),
    Entry(
        _INTERFACE,
        "KVCacheConfig.num_blocks_of",
        used_by=_SPEC,
        why="SWA tensors have fewer blocks",
        parameters=("tensor",),
        overrides=True,
    ),
    Entry(
        _INTERFACE,
        "compute_layout_strides",
        used_by=_OURS,
        why="strides of a pool's region in the layout that the backends asked for",
        parameters=("spec", "num_blocks", "num_layers", "layout", "fixed_strides"),
    ),
    Entry(
        ("vllm.v1.kv_cache_layout",),
        "KVCacheLayout",
        used_by=_OURS,
        why="the layout that the backends asked for",
        attributes=("LBNHC", "is_block_outermost"),
    ),
    Entry(
        ("vllm.v1.kv_cache_spec_registry",),
        "KVCacheSpecRegistry.register",
        used_by="vllm_mimo.kv.pools",
        why="which manager belongs to our specs",
        parameters=("kvcache_spec_cls", "manager_class", "uniform_type_base_spec"),
    ),
)
