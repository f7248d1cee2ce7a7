"""The index of one kind of KV in host memory: which block holds what, and what goes next.

vLLM's block pool with our eviction order, as on the device; the bytes are in the workers
(`vllm_mimo.tiers.regions`), every rank's share of a block under the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_mimo.kv.block_pool import WatchedBlockPool
from vllm_mimo.kv.eviction import NO_LABEL, EvictionQueue, Label
from vllm_mimo.kv.turns import Turns


class HostPool(WatchedBlockPool):
    """Blocks of host memory, found by the hashes of the device's cache.

    Args:
        blocks: of the pool; one more is never used (vLLM's null block).
        hash_block_size: tokens of a block hash.
        turns: the device's, so that both order by the same predictions.
        policy: a name in `vllm_mimo.kv.eviction.POLICIES`.
        clock: seconds.
    """

    def __init__(
        self,
        blocks: int,
        hash_block_size: int,
        turns: Turns,
        policy: str,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(blocks + 1, True, hash_block_size)

        def make(free: list[KVCacheBlock]) -> EvictionQueue:
            return EvictionQueue(free, turns, policy, clock)

        self.queue = self.use_order(make)

    @property
    def find(self) -> Callable[[bytes], Any]:
        """(hash with group id) -> block or None."""
        return self.cached_block_hash_to_block._cache.get

    def take(self, count: int) -> list[KVCacheBlock] | None:
        """Blocks to be filled, held until `release`; None where so many are not free."""
        if count > self.get_num_free_blocks():
            return None
        return self.get_new_blocks(count)

    def publish(self, block: KVCacheBlock, key: bytes, tokens: int) -> None:
        """A held block is filled: let it be found. Nothing where the key is held already."""
        if self.find(key) is None:
            self._insert_block_hash(key, block, num_tokens=tokens)

    def release(self, blocks: Sequence[KVCacheBlock], label: Label = NO_LABEL) -> None:
        """Give up blocks, in the order of a chain: its end is evicted first."""
        self.queue.label = label
        self.free_blocks(reversed(blocks))
        self.queue.label = NO_LABEL

    def refresh(self, keys: Iterable[bytes], label: Label) -> int:
        """Put what is cached of a chain under a new label, as if just used; how many blocks."""
        found = [block for key in keys if (block := self.find(key)) is not None]
        idle = [block for block in found if block.ref_cnt == 0]
        for block in idle:
            self.queue.remove(block)
        self.queue.label = label
        self.queue.append_n(idle[::-1])
        self.queue.label = NO_LABEL
        return len(found)

    @property
    def filled(self) -> float:
        """Share of the blocks that can be found."""
        return len(self.cached_block_hash_to_block) / max(1, self.num_gpu_blocks - 1)

    def forget(self) -> None:
        """Drop all that is cached; held blocks stay held."""
        for block in self.blocks:
            if block.block_hash is not None:
                self._maybe_evict_cached_block(block)
