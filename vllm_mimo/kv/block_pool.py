"""vLLM's block pool with an eviction order of ours, which tells what is cached and evicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.hisparse.block_pool import SharedEventQueueBlockPool
from vllm.v1.request import Request

from vllm_mimo.kv.eviction import EvictionQueue


class WatchedBlockPool(BlockPool):
    """Counts evictions and hands the evicted hash to `on_evicted`."""

    free_block_queue: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_evicted = 0
        self.on_evicted: Callable[[bytes], None] | None = None
        self.on_cached: Callable[[Request, Sequence[KVCacheBlock]], None] | None = None
        """(request, blocks that it has just put into the cache)."""
        self.on_overwrite: Callable[[bytes, KVCacheBlock], None] | None = None
        """(hash, block): a cached block is handed out, so the next step overwrites it. Blocks that
        are forgotten because what they hold is not valid do not come here."""
        self._handing_out = False

    def use_order(self, make: Callable[[list[KVCacheBlock]], EvictionQueue]) -> EvictionQueue:
        """Evict in the order of another queue. To be called while all blocks are free."""
        queue = make([block for block in self.blocks if not block.is_null])
        self.free_block_queue = queue
        return queue

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        self._handing_out = True
        try:
            return super().get_new_blocks(num_blocks)
        finally:
            self._handing_out = False

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        super().cache_full_blocks(
            request,
            blocks,
            num_cached_blocks,
            num_full_blocks,
            block_size,
            kv_cache_group_id,
            block_mask,
        )
        if self.on_cached is not None:
            new = blocks[num_cached_blocks:num_full_blocks]
            if block_mask is not None:
                new = [block for block, kept in zip(new, block_mask, strict=True) if kept]
            self.on_cached(request, new)

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> bool:
        key = block.block_hash
        evicted = super()._maybe_evict_cached_block(block)
        if evicted:
            self.num_evicted += 1
            if key is not None:
                if self.on_evicted is not None:
                    self.on_evicted(key)
                if self._handing_out and self.on_overwrite is not None:
                    self.on_overwrite(key, block)
        return evicted


class WindowBlockPool(SharedEventQueueBlockPool, WatchedBlockPool):
    """The SWA pool: its KV events go into the full pool's queue, with their group's index."""
