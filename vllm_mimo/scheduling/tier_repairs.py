"""Tells the tiers when a request ends, and what waits, where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_mimo.scheduling.policy import SchedulingPolicy
from vllm_mimo.tiers.connector import MimoTierConnector

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_mimo.scheduling.scheduler import MimoScheduler


class TierRepairs(SchedulingPolicy):
    """Labels and completes a request's blocks in host memory at its end."""

    def __init__(self, scheduler: MimoScheduler) -> None:
        super().__init__(scheduler)
        connector = scheduler.connector
        self.director = connector.director if isinstance(connector, MimoTierConnector) else None
        if self.director is not None:
            self.director.ahead.waiting = self.waiting
            self.director.repairs.request_of = scheduler.requests.__getitem__

    def waiting(self) -> Iterator[Request]:
        """Requests that the next step may admit, next first."""
        scheduler = self.scheduler
        if scheduler.waiting and len(scheduler.running) < scheduler.max_num_running_reqs:
            yield scheduler.waiting.peek_request()

    def request_ends(self, request: Request) -> None:
        if self.director is not None:
            self.director.request_ends(request)
