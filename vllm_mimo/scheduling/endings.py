"""Tells the cache how a request's output ended: in tool calls, or by itself.

After tool calls a client comes back within seconds, after an answer a person has to read it first;
the eviction order learns how long each takes. A tool call in MiMo's output starts with a special
token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.scheduling.junctions import special_token
from vllm_mimo.scheduling.policy import SchedulingPolicy

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_mimo.scheduling.scheduler import MimoScheduler

TOOL_CALL = "<tool_call>"
"""Starts a tool call in the output of the MiMo-V2 models."""


class Endings(SchedulingPolicy):
    """Looks for tool calls in the output of requests that stopped."""

    def __init__(self, scheduler: MimoScheduler) -> None:
        super().__init__(scheduler)
        self.tool_call = special_token(scheduler, TOOL_CALL)

    def request_ends(self, request: Request) -> None:
        if self.tool_call is None or request.status is not RequestStatus.FINISHED_STOPPED:
            return  # nobody knows
        manager = self.scheduler.kv_cache_manager
        assert isinstance(manager, MimoKVCacheManager)
        manager.mark_finished(request, self.tool_call in request._output_token_ids)
