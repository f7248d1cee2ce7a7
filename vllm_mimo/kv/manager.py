"""vLLM's KV cache manager over two pools: look-up, admission and release that see both."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request, RequestStatus

from vllm_mimo.kv.below import LowerTiers
from vllm_mimo.kv.block_pool import WatchedBlockPool, WindowBlockPool
from vllm_mimo.kv.cache_policy import DEFAULTS, CachePolicy
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.loading import place_loads, room_for_loads
from vllm_mimo.kv.misses import MissCounter
from vllm_mimo.kv.pools import FullManager, WindowManager, register
from vllm_mimo.kv.resume import Resume, ResumeRule
from vllm_mimo.kv.settled import settled_tokens
from vllm_mimo.kv.spec import WindowPoolSpec, has_two_pools
from vllm_mimo.kv.turns import Ending
from vllm_mimo.kv.worth import CacheWorth

NEVER = 1 << 60
"""A token or block count that no request reaches."""


class MimoKVCacheManager(KVCacheManager):
    """Two pools under vLLM's interface.

    Args:
        kv_cache_config: of `vllm_mimo.kv.planning`.
        policy: the user's choices.
        clock: seconds, for the eviction order; a replay of a trace passes its own.
        kwargs: of vLLM's manager.
    """

    block_pool: BlockPool

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        policy: CachePolicy = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        **kwargs: Any,
    ) -> None:
        assert has_two_pools(kv_cache_config)
        register()
        super().__init__(kv_cache_config, **kwargs)
        managers = self.coordinator.single_type_managers
        full, window = managers[FULL_GROUP], managers[WINDOW_GROUP]
        assert isinstance(full, FullManager) and isinstance(window, WindowManager)
        self.full, self.window = full, window
        spec = kv_cache_config.kv_cache_groups[WINDOW_GROUP].kv_cache_spec
        assert isinstance(spec, WindowPoolSpec)
        self._use_two_pools(kv_cache_config.num_blocks, spec.pool_blocks)
        self.rule = ResumeRule(
            replay_bound=spec.replay_bound,
            window=spec.sliding_window,
            replay=policy.replay,
            drop_tokens=full.block_size if self._drops_last_block() else 0,
        )
        window.rule = dataclasses.replace(
            window.rule, interval=policy.tail_interval, dense_until=policy.dense_until
        )
        self.misses = MissCounter(kv_cache_config.num_blocks)
        full.block_pool.on_evicted = lambda key: self.misses.evicted(get_block_hash(key))
        self.window_watermark = int(kwargs.get("watermark", 0.0) * spec.pool_blocks)
        self.admitted: set[str] = set()
        """Requests that hold blocks."""
        self.resumes: dict[str, Resume] = {}
        """What each admitted request took from the cache, until it is freed."""
        self.worth = CacheWorth(self, policy.eviction, clock)
        self.below: LowerTiers | None = None
        """Tiers from which a request may take blocks that the pools lack."""
        self.junctions: Callable[[Request], Sequence[int]] = lambda request: ()
        """Positions of a prompt at which others are expected to part from it."""

    def _drops_last_block(self) -> bool:
        """Whether speculation drops the last block of a hit (not where hashes look ahead, 0.33)."""
        groups = getattr(self.coordinator, "drop_eagle_group_ids", self.coordinator.eagle_group_ids)
        return bool(groups)

    def _use_two_pools(self, full_blocks: int, window_blocks: int) -> None:
        """Put pools of our own in place of the one that vLLM made for all groups."""
        shared = self.block_pool
        common: dict[str, Any] = {
            "enable_caching": shared.enable_caching,
            "hash_block_size": shared.hash_block_size,
            "enable_kv_cache_events": shared.enable_kv_cache_events,
        }
        if hasattr(shared, "num_hash_lookahead_tokens"):  # 0.33
            common["num_hash_lookahead_tokens"] = shared.num_hash_lookahead_tokens
        full = WatchedBlockPool(full_blocks, metrics_collector=self.metrics_collector, **common)
        window = WindowBlockPool(window_blocks, event_owner=full, **common)
        self.full.use_pool(full)
        self.window.use_pool(window)
        self.window.refusal = full_blocks + 1
        self.block_pool = self.coordinator.block_pool = full

    # --- look-up -------------------------------------------------------------------------------

    def get_computed_blocks(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int]:
        """The blocks a request takes from both pools and the first token it computes.

        The full-attention blocks may reach beyond that token: what lies between is recomputed for
        the SWA layers (`write_start`).
        """
        self.resumes.pop(request.request_id, None)
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        most = request.num_tokens - 1 if max_cache_hit_length is None else max_cache_hit_length
        resume = self.rule.choose(self.full, self.window, request.block_hashes, most)
        self.resumes[request.request_id] = resume
        if self.below is not None:
            deeper = self.below.deeper(request, most, resume)
            if deeper is not None:
                self.resumes[request.request_id] = deeper
        if not resume.full:
            return self.empty_kv_cache_blocks, 0, 0
        if self.enable_kv_cache_events and (
            getattr(request, "kv_cache_report_mode", "incremental") == "full"
        ):
            self.coordinator.emit_cached_block_events(request, (resume.full, []))
        skipped = resume.start // self.window.block_size - len(resume.tail)
        window = [self.window._null_block] * skipped + resume.tail
        junction = resume.full_tokens if resume.start < resume.full_tokens else 0
        return self.create_kv_cache_blocks((resume.full, window)), resume.start, junction

    def write_start(self, request_id: str) -> int:
        """First token whose full-attention KV a request may write: those before are shared."""
        resume = self.resumes.get(request_id)
        return resume.full_tokens if resume is not None else 0

    def new_step_starts(self) -> None:
        super().new_step_starts()
        if self.below is not None:
            self.below.step_starts()

    # --- admission -----------------------------------------------------------------------------

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        """vLLM's, with the watermark and the tail plan of the SWA pool."""
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        admitted = request.request_id in self.admitted
        watermark = waiting and kwargs.get("has_scheduled_reqs", True)
        self.window.headroom = self.window_watermark if watermark else 0
        if not admitted:
            self._plan_tails(request)
        resume = self.resumes.get(request.request_id)
        if not admitted and resume is not None and resume.has_loads:
            blocks = self._allocate_and_load(request, resume, num_new_tokens, kwargs)
        else:
            blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        self.window.headroom = 0
        if not admitted:
            self._count_admission(request, blocks is not None)
        return blocks

    def truncate_computed_blocks(
        self, blocks: KVCacheBlocks, num_computed_tokens: int
    ) -> KVCacheBlocks:
        """The blocks as they are: what a deeper hit of a lower tier takes is in `resumes`."""
        return blocks

    def _allocate_and_load(
        self, request: Request, resume: Resume, num_new_tokens: int, kwargs: dict[str, Any]
    ) -> KVCacheBlocks | None:
        """Admit a request that takes blocks of lower tiers, as if the device held them all."""
        assert self.below is not None
        watermark = self.watermark_blocks if self.window.headroom else 0
        if not room_for_loads(self, request, resume, watermark):
            return None
        with place_loads(self, resume) as placed:
            kwargs |= {
                "num_new_computed_tokens": resume.start,
                "new_computed_blocks": self.create_kv_cache_blocks((placed.full, placed.window)),
                "num_external_computed_tokens": 0,
            }
            blocks = super().allocate_slots(request, num_new_tokens, **kwargs)
            if blocks is not None:
                placed.publish(request)
                self.below.load(request, placed.full_loads, placed.window_loads)
        return blocks

    def _count_admission(self, request: Request, admitted: bool) -> None:
        if not admitted:
            self.misses.refused()
            return
        self.admitted.add(request.request_id)
        self.worth.admitted(request)
        resume = self.resumes.get(request.request_id)
        if resume is not None:
            self.misses.admitted(request, resume, self.full)

    def _plan_tails(self, request: Request) -> None:
        plan = self.window.plan(request.request_id)
        plan.positions.clear()
        plan.exact_from = 0
        resume = self.resumes.get(request.request_id)
        junctions = list(self.junctions(request))
        if resume is not None:
            plan.exact_from = resume.exact_from if resume.is_replay else 0
            if resume.start < resume.full_tokens:
                junctions.append(resume.full_tokens)
        plan.add_prompt(request.num_prompt_tokens, junctions)

    # --- release -------------------------------------------------------------------------------

    def release_outside_window(self, request: Request) -> None:
        """Free the SWA blocks that no later step of a request reads."""
        done = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        self.window.remove_skipped_blocks(request.request_id, done)

    def mark_finished(self, request: Request, ended_in_tool_call: bool | None) -> None:
        """Tell how a request's output ended, before it is freed: the next turn comes sooner after
        tool calls. None where nobody knows.
        """
        known = {True: Ending.TOOL_CALL, False: Ending.ITSELF, None: Ending.UNKNOWN}
        self.worth.note_ending(request.request_id, known[ended_in_tool_call])

    def free(self, request: Request) -> None:
        """Keep the tail at the request's end, then free its blocks."""
        self._close(request)
        with self.worth.freeing(request):
            super().free(request)
        self._forget(request)

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        self._close(request)
        blocks = super().pop_blocks_for_free(request)
        self._forget(request)
        return blocks

    def _close(self, request: Request) -> None:
        if not self.enable_caching:
            return
        if not request.is_finished():
            self._withdraw(request)
        # The last tokens' drafter KV may still be rewritten where several MTP modules run.
        settled = settled_tokens(request) - self.coordinator.num_reprefillable_tokens
        self.window.keep_end(request, max(0, settled))

    def _withdraw(self, request: Request) -> None:
        """Forget blocks that were to be computed in a step that will not run.

        Blocks are published when they are allocated. Under priority scheduling a request may be
        preempted after that in the same step, which then does not compute them.
        """
        computed = request.num_computed_tokens  # this step's tokens are not counted yet
        reused = max(computed, self.write_start(request.request_id))
        for manager, tokens in ((self.full, reused), (self.window, computed)):
            blocks = manager.req_to_blocks.get(request.request_id, ())
            for block in blocks[tokens // manager.block_size :]:
                if block.block_hash is not None and block.ref_cnt == 1:
                    manager.block_pool._maybe_evict_cached_block(block)

    def _forget(self, request: Request) -> None:
        self.resumes.pop(request.request_id, None)
        self.admitted.discard(request.request_id)
        if request.is_finished():
            self.worth.finished(request)

    def forget_cache(self) -> None:
        """Drop all that is cached while requests run, e.g. after the weights have changed.

        Running requests keep their blocks, but nothing of theirs is cached any more: it was
        computed with the old weights.
        """
        for manager in (self.full, self.window):
            for block in manager.block_pool.blocks:
                if block.block_hash is not None:
                    manager.block_pool._maybe_evict_cached_block(block)
            for request_id in self.admitted:
                manager.num_cached_block[request_id] = NEVER
        for request_id in self.admitted:
            self.window.plan(request_id).exact_from = NEVER

    # --- figures -------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """Share of the fuller pool's blocks that requests hold."""
        return max(self.full.block_pool.get_usage(), self.window.block_pool.get_usage())

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Forget cached blocks by id, in both pools: an id does not say which one is meant."""
        for manager in (self.full, self.window):
            pool = manager.block_pool
            pool.evict_blocks({i for i in block_ids if i < pool.num_gpu_blocks})
