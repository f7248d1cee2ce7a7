"""The KV cache manager and its managers for each group."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_MANAGER = ("vllm.v1.core.kv_cache_manager",)
_SINGLE = ("vllm.v1.core.single_type_kv_cache_manager",)
_COORDINATOR = ("vllm.v1.core.kv_cache_coordinator",)
_OURS = "vllm_mimo.kv.manager"
_POOLS = "vllm_mimo.kv.pools"

_MANAGERS = (
    Entry(
        _MANAGER,
        "KVCacheManager",
        used_by=_OURS,
        why="base class; what vLLM's own instance was made with",
        attributes=(
            "block_pool",
            "coordinator",
            "empty_kv_cache_blocks",
            "enable_caching",
            "enable_kv_cache_events",
            "log_stats",
            "metrics_collector",
            "usage",
            "use_eagle",
        ),
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.__init__",
        used_by="vllm_mimo.scheduling.scheduler",
        why="ours is made as vLLM's scheduler made its own",
        parameters=(
            "kv_cache_config",
            "max_model_len",
            "scheduler_block_size",
            "hash_block_size",
            "max_in_flight_tokens",
            "enable_caching",
            "use_eagle",
            "num_prefill_lookahead",
            "log_stats",
            "enable_kv_cache_events",
            "dcp_world_size",
            "metrics_collector",
            "watermark",
        ),
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.get_computed_blocks",
        used_by=_OURS,
        why="the look-up; 0.33 also passes `max_cache_hit_length`",
        parameters=("request",),
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.allocate_slots",
        used_by=_OURS,
        why="admission; wrapped for the SWA pool's watermark and the plan of tails",
        parameters=("request", "num_new_tokens", "has_scheduled_reqs"),
    ),
    *(
        Entry(
            _MANAGER,
            f"KVCacheManager.{name}",
            used_by=_OURS,
            why=why,
            parameters=(parameter,),
            overrides=True,
        )
        for name, parameter, why in (
            ("free", "request", "keeps the tail at a request's end first"),
            ("pop_blocks_for_free", "request", "keeps the tail at a request's end first"),
            ("evict_blocks", "block_ids", "an id does not say which pool is meant"),
        )
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.new_step_starts",
        used_by=_OURS,
        why="what was loaded ahead is held until then",
        overrides=True,
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.truncate_computed_blocks",
        used_by=_OURS,
        why="blocks of a look-up stay whole: what lower tiers add is not in them",
        parameters=("blocks", "num_computed_tokens"),
        overrides=True,
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.create_kv_cache_blocks",
        used_by=_OURS,
        why="blocks of both groups",
        parameters=("blocks",),
    ),
    Entry(
        _MANAGER,
        "KVCacheManager.prefix_cache_lookup_enabled",
        used_by=_OURS,
        why="whether a request may take cached blocks",
        parameters=("request",),
    ),
    Entry(_MANAGER, "KVCacheBlocks", used_by=_OURS, why="what a look-up gives"),
    Entry(
        _COORDINATOR,
        "KVCacheCoordinator",
        used_by=_OURS,
        why="holds the managers of both groups and a pool that we replace",
        attributes=("block_pool", "eagle_group_ids", "single_type_managers"),
    ),
    Entry(
        _COORDINATOR,
        "KVCacheCoordinator.emit_cached_block_events",
        used_by=_OURS,
        why="KV events of reused blocks",
        parameters=("request", "computed_blocks"),
    ),
)

_GROUPS = (
    Entry(
        _SINGLE,
        "register_all_kvcache_specs",
        used_by=_POOLS,
        why="fills the registry, which vLLM fills only while it is empty",
        parameters=("vllm_config",),
    ),
    Entry(
        _SINGLE,
        "SingleTypeKVCacheManager",
        used_by=_POOLS,
        why="a request's blocks in one group, and the pool that they come from",
        attributes=(
            "_null_block",
            "block_pool",
            "block_size",
            "enable_caching",
            "kv_cache_group_id",
            "num_cached_block",
            "req_to_blocks",
        ),
    ),
    Entry(
        _SINGLE,
        "FullAttentionManager",
        used_by=_POOLS,
        why="base class; hits are whole blocks",
        attributes=("supports_fine_grained_hash_lookup",),
    ),
    Entry(
        _SINGLE,
        "FullAttentionManager._has_partial_local_hit",
        used_by=_POOLS,
        why="a request that computes from within a cached block is no partial hit",
        parameters=("new_computed_blocks", "num_local_computed_tokens"),
        overrides=True,
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager",
        used_by=_POOLS,
        why="base class",
        attributes=("extra_retained_tokens", "sliding_window"),
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager.__init__",
        used_by=_POOLS,
        why="made by vLLM's coordinator",
        parameters=("kv_cache_spec",),
        overrides=True,
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager.get_num_blocks_to_allocate",
        used_by=_POOLS,
        why="the SWA pool's own free blocks decide",
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager.get_num_skipped_tokens",
        used_by=_POOLS,
        why="a whole tail is kept",
        parameters=("num_computed_tokens",),
        overrides=True,
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager.cache_blocks",
        used_by=_POOLS,
        why="only tails are published",
        parameters=("request", "num_tokens", "retention_interval", "replay_boundaries"),
        overrides=True,
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager.pop_blocks_for_free",
        used_by=_POOLS,
        why="forgets the plan of tails",
        parameters=("request_id",),
        overrides=True,
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager._remove_blocks_in_range",
        used_by=_POOLS,
        why="says what the blocks that leave a window are worth",
        parameters=("request_id", "first_block", "last_block"),
        overrides=True,
    ),
    Entry(
        _SINGLE,
        "SlidingWindowManager.remove_skipped_blocks",
        used_by=_OURS,
        why="frees blocks below the window after each step",
        parameters=("request_id", "processed_computed_tokens"),
    ),
)

KV_MANAGER_ENTRIES = (*_MANAGERS, *_GROUPS)
