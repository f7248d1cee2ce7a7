"""Tells the workers which full-attention KV of a step must not be written.

A request that resumes below its full hit recomputes tokens whose full-attention KV is cached and
perhaps shared. In a replay the first of them are inexact in deeper layers: writing them would spoil
the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.scheduling.handover import WRITE_STARTS
from vllm_mimo.scheduling.policy import SchedulingPolicy

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class WriteGuard(SchedulingPolicy):
    """Adds each step's write starts to its SchedulerOutput."""

    def scheduled(self, output: SchedulerOutput) -> None:
        manager = self.scheduler.kv_cache_manager
        assert isinstance(manager, MimoKVCacheManager)
        starts = {}
        for request_id, scheduled in output.num_scheduled_tokens.items():
            write_start = manager.write_start(request_id)
            if not write_start:
                continue
            # The scheduler has counted this step's tokens as computed by now.
            first = self.scheduler.requests[request_id].num_computed_tokens - scheduled
            if first < write_start:
                starts[request_id] = write_start
        setattr(output, WRITE_STARTS, starts)
