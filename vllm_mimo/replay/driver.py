"""Drives a real `KVCacheManager` (vLLM's or a subclass) as vLLM's scheduler does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm.v1.core.kv_cache_utils import get_group_id
from vllm.v1.request import RequestStatus

from vllm_mimo.replay.policy import Lookup
from vllm_mimo.replay.request import ReplayRequest


class EvictionCounter:
    """Counts cached blocks that a pool hands out again, by KV cache group.

    It takes the place of vLLM's `KVCacheMetricsCollector`, whose hooks the pool calls.
    """

    def __init__(self) -> None:
        self.by_group: Counter[int] = Counter()

    def on_block_evicted(self, block: Any) -> None:
        """Called for each block that is allocated, before it loses its hash."""
        if block.block_hash is not None:
            self.by_group[get_group_id(block.block_hash)] += 1

    def on_block_allocated(self, block: Any) -> None:
        """Not of interest."""

    def on_block_accessed(self, block: Any) -> None:
        """Not of interest."""

    def reset(self) -> None:
        """The cache was reset."""


class ManagerDriver:
    """A `CacheDriver` over one manager with one block pool."""

    def __init__(
        self,
        manager: Any,
        hash_block_size: int,
        group_kinds: tuple[str, ...],
        counter: EvictionCounter,
        facts: Mapping[str, Any],
    ) -> None:
        self.manager = manager
        self.hash_block_size = hash_block_size
        self.group_kinds = group_kinds
        self.counter = counter
        self.facts = facts
        self.capacity: Mapping[str, int] = self._free_blocks()

    def lookup(self, request: ReplayRequest) -> Lookup:
        start = time.thread_time_ns()
        found = self.manager.get_computed_blocks(request)
        elapsed = time.thread_time_ns() - start
        return Lookup(cached=found[1], resume=found[1], nanoseconds=elapsed, handle=found)

    def admit(self, request: ReplayRequest, lookup: Lookup, tokens: int, idle: bool) -> bool:
        blocks, hit, junction = lookup.handle
        request.shared_prefix_boundary = junction
        allocated = self.manager.allocate_slots(
            request,
            tokens,
            num_new_computed_tokens=hit,
            new_computed_blocks=blocks,
            full_sequence_must_fit=True,
            has_scheduled_reqs=not idle,
        )
        if allocated is None:
            return False
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit + tokens
        return True

    def step(self, request: ReplayRequest, tokens: int) -> bool:
        if self.manager.allocate_slots(request, tokens) is None:
            return False
        request.num_computed_tokens += tokens
        return True

    def finish(self, request: ReplayRequest, ended_in_tool_call: bool | None) -> None:
        request.status = RequestStatus.FINISHED_STOPPED
        request.finished = True
        self.manager.free(request)

    def preempt(self, request: ReplayRequest) -> None:
        self.manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_in_flight_tokens = 0
        request.num_preemptions += 1

    def used_blocks(self) -> Mapping[str, int]:
        free = self._free_blocks()
        return {pool: size - free[pool] for pool, size in self.capacity.items()}

    def evictions(self) -> Mapping[str, int]:
        kinds = dict.fromkeys(self.group_kinds, 0)
        for group, count in self.counter.by_group.items():
            kinds[self.group_kinds[group]] += count
        return kinds

    def miss_reasons(self) -> Mapping[str, int] | None:
        return None

    def tier_figures(self) -> Mapping[str, int] | None:
        return None

    def _free_blocks(self) -> dict[str, int]:
        return {"all": self.manager.block_pool.get_num_free_blocks()}
