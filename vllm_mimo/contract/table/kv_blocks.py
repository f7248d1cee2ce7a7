"""The block pool: free and cached blocks, and how they are found by hash."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_POOL = ("vllm.v1.core.block_pool",)
_UTILS = ("vllm.v1.core.kv_cache_utils",)
_OURS = "vllm_mimo.kv.manager"
_POOLS = "vllm_mimo.kv.pools"
_BLOCKS = "vllm_mimo.kv.block_pool"
_QUEUE = "vllm_mimo.kv.eviction"

KV_BLOCK_ENTRIES = (
    Entry(
        _POOL,
        "BlockPool",
        used_by=_BLOCKS,
        why="base class of both pools",
        attributes=(
            "blocks",
            "cached_block_hash_to_block",
            "enable_caching",
            "enable_kv_cache_events",
            "free_block_queue",
            "hash_block_size",
            "metrics_collector",
            "null_block",
            "num_gpu_blocks",
        ),
    ),
    Entry(
        _POOL,
        "BlockPool.free_blocks",
        used_by=_BLOCKS,
        why="gives each block back to the pool that it is of",
        parameters=("ordered_blocks",),
    ),
    Entry(
        _POOL,
        "BlockPool.__init__",
        used_by=_BLOCKS,
        why="our pools take the place of the one that vLLM made",
        parameters=(
            "num_gpu_blocks",
            "enable_caching",
            "hash_block_size",
            "enable_kv_cache_events",
            "metrics_collector",
        ),
    ),
    Entry(
        _POOL,
        "BlockPool._maybe_evict_cached_block",
        used_by=_BLOCKS,
        why="counts evictions and says which hash is gone",
        parameters=("block",),
        overrides=True,
    ),
    Entry(
        _POOL,
        "BlockPool.get_new_blocks",
        used_by=_BLOCKS,
        why="the most blocks in use at once",
        parameters=("num_blocks",),
        overrides=True,
    ),
    *(
        Entry(_POOL, f"BlockPool.{name}", used_by=by, why=why, parameters=parameters)
        for name, parameters, by, why in (
            ("evict_blocks", ("block_ids",), _OURS, "forgets cached blocks of each pool"),
            ("get_num_free_blocks", (), _POOLS, "whether the SWA pool has what is needed"),
            ("get_usage", (), _OURS, "share of the blocks in use"),
        )
    ),
    Entry(
        _POOL,
        "BlockPool.touch",
        used_by="vllm_mimo.kv.loading",
        why="holds cached blocks that are read",
        parameters=("blocks",),
    ),
    Entry(
        _POOL,
        "BlockPool._insert_block_hash",
        used_by="vllm_mimo.tiers.host_pool",
        why="a block of host memory is found from then on",
        parameters=("block_hash_with_group_id", "block", "num_tokens"),
    ),
    Entry(
        _POOL,
        "BlockPool.cache_full_blocks",
        overrides=True,
        used_by=_BLOCKS,
        why="publishes the blocks of a tail; tells what was published",
        parameters=(
            "request",
            "blocks",
            "num_cached_blocks",
            "num_full_blocks",
            "block_size",
            "kv_cache_group_id",
            "block_mask",
        ),
    ),
    Entry(
        _POOL,
        "BlockHashToBlockMap",
        used_by=_POOLS,
        why="read directly: hash with group -> block, or dictionary of blocks by id",
        attributes=("_cache",),
    ),
    Entry(
        ("vllm.v1.hisparse.block_pool",),
        "SharedEventQueueBlockPool",
        used_by=_BLOCKS,
        why="base class of the SWA pool: its KV events go into the full pool's queue",
    ),
    Entry(
        ("vllm.v1.hisparse.block_pool",),
        "SharedEventQueueBlockPool.__init__",
        used_by=_BLOCKS,
        why="whose queue it is",
        parameters=("event_owner",),
    ),
    Entry(
        _UTILS,
        "KVCacheBlock",
        used_by=_BLOCKS,
        why="a block, the hash under which it is cached, and its place in a free queue",
        attributes=(
            "block_hash",
            "block_hash_num_tokens",
            "block_id",
            "is_null",
            "next_free_block",
            "pool",
            "prev_free_block",
            "ref_cnt",
        ),
    ),
    Entry(_UTILS, "BlockHash", used_by=_POOLS, why="a request's hashes"),
    Entry(
        _UTILS,
        "make_block_hash_with_group_id",
        used_by=_POOLS,
        why="the key of a cached block: its hash and four bytes of the group",
        parameters=("block_hash", "group_id"),
    ),
    *(
        Entry(
            _UTILS,
            f"FreeKVCacheBlockQueue.{name}",
            used_by=_QUEUE,
            why="our queue takes the place of vLLM's, and has its methods",
            parameters=parameters,
            overrides=True,
        )
        for name, parameters in (
            ("append", ("block",)),
            ("append_n", ("blocks",)),
            ("get_all_free_blocks", ()),
            ("iter_blocks_after", ("cursor",)),
            ("popleft", ()),
            ("popleft_n", ("n",)),
            ("prepend_n", ("blocks",)),
            ("remove", ("block",)),
        )
    ),
    Entry(
        _UTILS,
        "FreeKVCacheBlockQueue",
        used_by=_QUEUE,
        why="read by the pool",
        attributes=("num_free_blocks",),
    ),
)
