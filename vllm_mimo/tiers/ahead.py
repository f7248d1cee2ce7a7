"""Loads the next request's KV while the step before its own runs.

The blocks become cached blocks of the device like any others; they are held until the next step is
scheduled, so that the request finds them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vllm.v1.request import Request, RequestStatus

from vllm_mimo.kv.loading import Placed, place_loads, room_for_loads

if TYPE_CHECKING:
    from vllm_mimo.kv.manager import MimoKVCacheManager

_READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class AheadLoads:
    """Device blocks that are loaded a step early.

    Args:
        manager: of the device's pools.
        waiting: gives the requests that the next step may admit, next first.
    """

    def __init__(
        self, manager: MimoKVCacheManager, waiting: Callable[[], Iterable[Request]]
    ) -> None:
        self.manager = manager
        self.waiting = waiting
        self.placed: Placed | None = None
        """The blocks that are held."""
        self._held = ExitStack()
        self._tried = ""
        """The last request that was looked at: once is enough."""

    def place(self) -> tuple[Request, Placed] | None:
        """Take blocks for the next request, if lower tiers hold some of its KV."""
        request = next(iter(self.waiting()), None)
        if request is None or request.status not in _READY or request.num_computed_tokens:
            return None
        if request.request_id == self._tried:
            return None
        self._tried = request.request_id
        manager = self.manager
        manager.get_computed_blocks(request)
        resume = manager.resumes.pop(request.request_id, None)
        if resume is None or not resume.has_loads:
            return None
        if not room_for_loads(manager, request, resume, manager.watermark_blocks):
            return None
        self.placed = self._held.enter_context(place_loads(manager, resume))
        self.placed.publish(request)
        return request, self.placed

    def release(self) -> None:
        """The next step is about to be scheduled."""
        self._held.close()
        self.placed = None
