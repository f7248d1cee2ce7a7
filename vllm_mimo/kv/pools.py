"""The manager of each pool: vLLM's for its kind of attention, with what two pools need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id
from vllm.v1.core.single_type_kv_cache_manager import (
    FullAttentionManager,
    SlidingWindowManager,
    register_all_kvcache_specs,
)
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from vllm_mimo.kv.eviction import NO_LABEL, EvictionQueue, Label
from vllm_mimo.kv.sizing import tail_blocks
from vllm_mimo.kv.spec import FullPoolSpec, WindowPoolSpec
from vllm_mimo.kv.tails import TailPlan, TailRule

Lookup = Callable[[bytes], Any]
"""(hash with group id) -> a block, a dict of blocks, or None."""


class OwnPool:
    """What the managers of both pools have in common."""

    block_pool: BlockPool
    block_size: int
    kv_cache_group_id: int
    req_to_blocks: defaultdict[str, list[KVCacheBlock]]

    def use_pool(self, pool: BlockPool) -> None:
        """Take blocks from another pool. To be called before any request is known."""
        assert not self.req_to_blocks
        self.block_pool = pool
        self._null_block = pool.null_block

    @property
    def cached(self) -> Lookup:
        """What is cached under a hash with group id: a block, or a dict of blocks.

        Reads vLLM's map directly: one dictionary access a block instead of four calls.
        """
        return self.block_pool.cached_block_hash_to_block._cache.get

    @property
    def key_end(self) -> bytes:
        """What ends this group's keys, after the block's hash."""
        return make_block_hash_with_group_id(BlockHash(b""), self.kv_cache_group_id)

    def block_hashes(self, hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """A request's hashes at this pool's block size."""
        return at_block_size(hashes, self.block_pool.hash_block_size, self.block_size)


class FullManager(OwnPool, FullAttentionManager):
    """Full-attention blocks. A request may hold cached blocks beyond where it computes."""

    supports_fine_grained_hash_lookup = False

    def find_prefix(self, hashes: Sequence[BlockHash], most: int) -> list[KVCacheBlock]:
        """The cached blocks of the longest prefix, `most` at most."""
        return prefix_of(self.cached, hashes, most, self.key_end)

    def _cache_partial_tail_block(self, request: Request, num_tokens: int) -> None:
        """Nothing: look-ups read whole blocks only, so a part of one would never be found."""

    def _has_partial_local_hit(self, *_: Any) -> bool:
        """Hits are whole blocks; that a request computes from within one is no partial hit."""
        return False


class WindowManager(OwnPool, SlidingWindowManager):
    """SWA blocks, in a pool of their own."""

    def __init__(self, kv_cache_spec: WindowPoolSpec, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        self.refusal = 0
        """More blocks than the full pool has."""
        self.rule = TailRule(self.block_size, tail_blocks(self.sliding_window, self.block_size))
        self.plans: dict[str, TailPlan] = {}
        self.queue: EvictionQueue | None = None
        self.labels: Callable[[str, int, int], Iterable[tuple[int, int, Label]]] | None = None
        """(request, first block, last block) -> ranges of blocks that leave the window, the last
        range first, with what they are worth in the cache."""
        self.headroom = 0
        """Blocks to leave free in the allocation at hand (vLLM's watermark)."""

    def plan(self, request_id: str) -> TailPlan:
        """Where this request keeps tails."""
        if request_id not in self.plans:
            self.plans[request_id] = TailPlan(self.rule)
        return self.plans[request_id]

    def get_num_blocks_to_allocate(self, *args: Any, **kwargs: Any) -> int:
        """0 where this pool has what is needed, else more than the full pool could ever give.

        The sum over groups is compared with the full pool's free blocks, which are not ours.
        """
        needed = super().get_num_blocks_to_allocate(*args, **kwargs)
        enough = needed + self.headroom <= self.block_pool.get_num_free_blocks()
        return 0 if enough or not needed else self.refusal

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Tokens before the window of the last whole block's end.

        Up to one block more than the next token needs, so that the tail there is whole whenever
        the request ends.
        """
        whole = num_computed_tokens - num_computed_tokens % self.block_size
        return max(0, whole - self.sliding_window + 1 - self.extra_retained_tokens)

    def _remove_blocks_in_range(self, request_id: str, first_block: int, last_block: int) -> None:
        if self.labels is None or self.queue is None:
            super()._remove_blocks_in_range(request_id, first_block, last_block)
            return
        for first, last, label in self.labels(request_id, first_block, last_block):
            self.queue.label = label
            super()._remove_blocks_in_range(request_id, first, last)
        self.queue.label = NO_LABEL

    def find_tail(
        self, hashes: Sequence[BlockHash], end: int, lowest: int
    ) -> tuple[int, list[KVCacheBlock]] | None:
        """The last tail that ends before block `end` or earlier, but after block `lowest`.

        Returns:
            The number of blocks before which it ends, and its blocks in order; None if there is
            none. Costs at most one look-up for each block between the two.
        """
        return tail_of(self.cached, hashes, end, lowest, self.rule.blocks, self.key_end)

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        retention_interval: int | None = None,
        *,
        replay_boundaries: Sequence[int] = (),
    ) -> None:
        """Publish the blocks of tails that the plan keeps, in place of vLLM's retention rule."""
        start = self.num_cached_block.get(request.request_id, 0)
        # With look-ahead hashes (0.33, MTP) the last blocks have none yet.
        hashed = len(request.block_hashes) * self.block_pool.hash_block_size
        end = min(num_tokens, hashed) // self.block_size
        if start < end:
            self._publish(request, start, end, self.plan(request.request_id).mask(start, end))
            self.num_cached_block[request.request_id] = end

    def keep_end(self, request: Request, num_tokens: int) -> list[KVCacheBlock]:
        """Publish the tail before the last whole block of `num_tokens` computed tokens.

        To be called while the request still holds its blocks; a tail with a block that is gone or
        not exact is left out.

        Returns:
            The blocks of the tail, or none.
        """
        blocks = self.req_to_blocks.get(request.request_id)
        end = min(num_tokens, len(request.block_hashes) * self.block_pool.hash_block_size)
        end //= self.block_size
        if not blocks or not self.enable_caching or end > len(blocks) or end == 0:
            return []
        start = max(0, end - self.rule.blocks)
        tail = blocks[start:end]
        exact = self.plan(request.request_id).exact_from <= start * self.block_size
        if not exact or any(block.is_null for block in tail):
            return []
        mask = [block.block_hash is None for block in tail]
        if any(mask):
            self._publish(request, start, end, mask)
        return tail

    def _publish(self, request: Request, start: int, end: int, mask: list[bool]) -> None:
        self.block_pool.cache_full_blocks(
            request=request,
            blocks=self.req_to_blocks[request.request_id],
            num_cached_blocks=start,
            num_full_blocks=end,
            block_size=self.block_size,
            kv_cache_group_id=self.kv_cache_group_id,
            block_mask=mask,
        )

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        self.plans.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)


def prefix_of(lookup: Lookup, hashes: Sequence[bytes], most: int, key_end: bytes) -> list[Any]:
    """The blocks of the longest prefix that `lookup` knows, `most` at most."""
    found = []
    for block_hash in hashes[:most]:
        block = lookup(block_hash + key_end)
        if block is None:
            break
        found.append(next(iter(block.values())) if type(block) is dict else block)
    return found


def tail_of(
    lookup: Lookup, hashes: Sequence[bytes], end: int, lowest: int, blocks: int, key_end: bytes
) -> tuple[int, list[Any]] | None:
    """The last tail of `blocks` blocks that ends before block `end`, but after block `lowest`.

    Returns:
        The number of blocks before which it ends, and its blocks in order; None if there is none.
        Costs at most one look-up for each block between the two.
    """
    while end > lowest:
        found: list[Any] = []
        first = max(0, end - blocks)
        for index in range(end - 1, first - 1, -1):
            block = lookup(hashes[index] + key_end)
            if block is None:
                break
            found.append(next(iter(block.values())) if type(block) is dict else block)
        else:
            return end, found[::-1]
        end = index
    return None


def at_block_size(
    hashes: Sequence[BlockHash], hash_block_size: int, block_size: int
) -> Sequence[BlockHash]:
    """Chained hashes of every `hash_block_size` tokens, seen at a coarser block size."""
    if block_size == hash_block_size:
        return hashes
    return hashes[block_size // hash_block_size - 1 :: block_size // hash_block_size]


def register() -> None:
    """Tell vLLM which manager belongs to which spec. May be called again."""
    # vLLM fills its registry on first use only while it is empty.
    register_all_kvcache_specs(None)
    KVCacheSpecRegistry.register(FullPoolSpec, FullManager, FullPoolSpec)
    KVCacheSpecRegistry.register(WindowPoolSpec, WindowManager, WindowPoolSpec)
