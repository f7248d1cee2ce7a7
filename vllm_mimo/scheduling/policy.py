"""What a scheduling policy may do, and at which moments the scheduler asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from vllm_mimo.scheduling.scheduler import MimoScheduler


class SchedulingPolicy:
    """Moments in the life of a step and a request; every method may be left out.

    A policy is made once with the scheduler and keeps its own state. Methods run in the order in
    which policies are listed, in the engine's process, between steps: they must be quick.
    """

    def __init__(self, scheduler: MimoScheduler) -> None:
        self.scheduler = scheduler

    def request_added(self, request: Request) -> None:
        """A request entered the queue."""

    def scheduled(self, output: SchedulerOutput) -> None:
        """A step was scheduled. What is added to `output` reaches every worker's `StepPart`s."""

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """A step's tokens were handed to their requests."""

    def request_ends(self, request: Request) -> None:
        """A request is finished or aborted and still holds its blocks."""

    def before_reset(self) -> None:
        """The prefix cache is to be reset, which needs that no request holds blocks."""

    def caches_dropped(self) -> None:
        """The prefix cache was reset, or what it held was forgotten."""
