"""Frees SWA blocks as soon as no later step reads them.

vLLM frees a request's blocks outside the window when that request is scheduled next; requests ahead
of it in the same step could not use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.scheduling.policy import SchedulingPolicy

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput


class WindowRelease(SchedulingPolicy):
    """After each prefill chunk, and while decoding once every SWA block of tokens."""

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        manager = self.scheduler.kv_cache_manager
        assert isinstance(manager, MimoKVCacheManager)
        every = manager.window.block_size
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = self.scheduler.requests.get(request_id)
            if request is None or request_id not in manager.admitted:
                continue
            done = request.num_computed_tokens - request.num_in_flight_tokens
            if scheduled > 1 or done % every < scheduled:
                manager.release_outside_window(request)
