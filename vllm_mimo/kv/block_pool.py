"""vLLM's block pool with an eviction order of ours, which tells when cached blocks are evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.hisparse.block_pool import SharedEventQueueBlockPool

from vllm_mimo.kv.eviction import EvictionQueue


class WatchedBlockPool(BlockPool):
    """Counts evictions and hands the evicted hash to `on_evicted`."""

    free_block_queue: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_evicted = 0
        self.on_evicted: Callable[[bytes], None] | None = None

    def use_order(self, make: Callable[[list[KVCacheBlock]], EvictionQueue]) -> EvictionQueue:
        """Evict in the order of another queue. To be called while all blocks are free."""
        queue = make([block for block in self.blocks if not block.is_null])
        self.free_block_queue = queue
        return queue

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        key = block.block_hash
        evicted = super()._maybe_evict_cached_block(block)
        if evicted:
            self.num_evicted += 1
            if self.on_evicted is not None and key is not None:
                self.on_evicted(key)
        return evicted


class WindowBlockPool(SharedEventQueueBlockPool, WatchedBlockPool):
    """The SWA pool: its KV events go into the full pool's queue, with their group's index."""
