"""Plays scheduled requests through one policy's manager on a virtual clock.

A request is admitted in order of arrival when the whole prompt fits, prefilled in chunks, and holds
its blocks for as long as the trace says; then its output is appended block by block and it is
freed. Who does not fit waits, and everybody behind waits too, until a running request finishes.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_mimo.replay.measure import Measurements
from vllm_mimo.replay.policy import CacheDriver, ManagerPolicy
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.traces.form import TraceRequest


@dataclass(frozen=True, slots=True)
class Service:
    """How requests are served."""

    hold: bool = True
    """Whether requests hold their blocks while they are served, or are served in no time."""
    output_token_s: float = 0.02
    """Seconds per output token where the trace has no duration."""

    def duration_s(self, request: TraceRequest) -> float:
        """Seconds from admission to end."""
        if not self.hold:
            return 0.0
        if request.duration_s is not None:
            return request.duration_s
        return request.output_tokens * self.output_token_s


class VirtualClock:
    """The time of a replay in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Replay:
    """One policy at one budget under one load."""

    def __init__(self, policy: ManagerPolicy, budget: int, service: Service) -> None:
        self.policy = policy
        self.budget = budget
        self.service = service
        self.clock = VirtualClock()
        self.driver: CacheDriver = policy.build(budget, self.clock)
        self.measured = Measurements()
        self.waiting: deque[ReplayRequest] = deque()
        self.running: dict[str, ReplayRequest] = {}
        """In order of admission."""
        self._ends: list[tuple[float, int, ReplayRequest]] = []
        """(time, serial number, request) of the admissions."""
        self._serial = 0

    def play(self, requests: Sequence[TraceRequest]) -> Iterator[None]:
        """Play the requests; yields after each arrival, so that replays can be interleaved."""
        for number, trace in enumerate(requests):
            start = time.perf_counter()
            self._run_until(trace.arrival_s)
            request = self.new_request(trace, number)
            self.waiting.append(request)
            self._admit_waiting()
            if self.waiting and self.waiting[-1] is request:
                self.measured.waited += 1
            self.measured.wall_seconds += time.perf_counter() - start
            yield
        start = time.perf_counter()
        self._run_until(float("inf"))
        self.measured.wall_seconds += time.perf_counter() - start
        assert not self.waiting and not self.running

    def new_request(self, trace: TraceRequest, number: int) -> ReplayRequest:
        """What the manager sees of a request."""
        return ReplayRequest(trace, number, self.driver.hash_block_size)

    def _run_until(self, when: float) -> None:
        while self._ends and self._ends[0][0] <= when:
            end, serial, request = heapq.heappop(self._ends)
            if request.admission != serial:  # it was preempted since
                continue
            self.clock.now = end
            if self._decode(request):
                del self.running[request.request_id]
                self.driver.finish(request, request.trace.ended_in_tool_call)
            else:
                self.waiting.appendleft(request)
            self._admit_waiting()
        if when != float("inf"):
            self.clock.now = when

    def _admit_waiting(self) -> None:
        while self.waiting:
            request = self.waiting.popleft()
            if self._prefill(request):
                continue
            if self.running:
                self.waiting.appendleft(request)
                return
            self.measured.refused += 1
            self.measured.refused_tokens += request.num_prompt_tokens

    def _prefill(self, request: ReplayRequest) -> bool:
        """Look up, admit and compute all chunks; False, and nothing is held, where it won't fit."""
        found = self.driver.lookup(request)
        self.measured.record_lookup(request.num_prompt_tokens, found.nanoseconds)
        deployment = self.policy.deployment
        chunk = min(request.num_tokens - found.resume, deployment.chunk_tokens)
        request.num_in_flight_tokens = 0
        if not self.driver.admit(request, found, chunk, not self.running):
            return False
        self.running[request.request_id] = request
        self._note_use()
        while request.num_computed_tokens < request.num_tokens:
            if deployment.batches_in_flight > 1:
                request.num_in_flight_tokens = chunk
            left = request.num_tokens - request.num_computed_tokens
            chunk = min(left, deployment.chunk_tokens)
            if not self._step(request, chunk):
                return False
        request.num_in_flight_tokens = 0
        # The first decode step lets the windows slide off the prompt; it follows at once.
        if not self._decode(request, most=1):
            return False
        self._count(request, found.cached, found.resume)
        self._serial += 1
        request.admission = self._serial
        end = self.clock.now + self.service.duration_s(request.trace)
        heapq.heappush(self._ends, (end, self._serial, request))
        return True

    def _count(self, request: ReplayRequest, cached: int, resume: int) -> None:
        measured = self.measured
        if request.counted:
            measured.preempted_tokens += request.num_tokens - resume
            return
        request.counted = True
        measured.requests += 1
        measured.prompt_tokens += request.num_prompt_tokens
        measured.cached_tokens += cached
        measured.reused_tokens += resume
        measured.wait_seconds += self.clock.now - request.arrival_time

    def _decode(self, request: ReplayRequest, most: int | None = None) -> bool:
        """Append the output, in steps up to each block's end; False where it was preempted.

        The last output token is never computed, as in vLLM. `most` limits the tokens.
        """
        block = self.driver.hash_block_size
        last = request.num_prompt_tokens + request.trace.output_tokens - 1
        if most is not None:
            last = min(last, request.num_computed_tokens + most)
        while request.num_computed_tokens < last:
            done = request.num_computed_tokens
            end = min((done // block + 1) * block, last)
            request.append_output(end + 1 - request.num_tokens)
            if not self._step(request, end - done):
                return False
        return True

    def _step(self, request: ReplayRequest, tokens: int) -> bool:
        """Allocate; preempts the youngest running request as often as that takes.

        False where that was `request` itself: the caller puts it back among the waiting.
        """
        while not self.driver.step(request, tokens):
            victim = next(reversed(self.running.values()))
            del self.running[victim.request_id]
            self.driver.preempt(victim)
            victim.admission = 0
            self.measured.preemptions += 1
            if victim is request:
                return False
            self.waiting.appendleft(victim)
        self._note_use()
        return True

    def _note_use(self) -> None:
        self.measured.record_use(self.driver.used_blocks(), len(self.running))
