"""Drives the cache manager as vLLM's asynchronous scheduler does, over the modelled worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request, RequestStatus

from vllm_mimo.scheduling.handover import WRITE_STARTS
from vllm_mimo.scheduling.window_release import WindowRelease
from vllm_mimo.scheduling.write_guard import WriteGuard

from .geometry import Geometry, make_request
from .invariants import check_windows
from .lookup import Hit, check_refusal, expected_hit
from .steps import MAX_RUNNING, Step, greedy_token
from .worker import Chunk, Contents, Violation, Worker, require


class Engine:
    """Scheduler, manager and worker. KV is written when a step is scheduled: steps run in order and
    nothing but steps touches KV, so that later outputs make no difference to it."""

    def __init__(self, geometry: Geometry, caching: bool = True) -> None:
        self.geometry = geometry
        self.now = 0.0
        self.manager = geometry.manager(lambda: self.now, caching)
        self.kv_cache_manager = self.manager  # its name in vLLM's scheduler
        self.worker = Worker(geometry)
        self.contents = Contents()
        self.requests: dict[str, Request] = {}
        self.ids: dict[str, list[int]] = {}
        """Prefix numbers of each request's tokens, those sampled but not yet delivered included."""
        self.hashed: dict[bytes, np.ndarray] = {}
        """Prefix numbers of all tokens that a block hash stands for."""
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.steps: deque[Step] = deque()
        self.scheduled = self.processed = 0
        self.last_step: dict[str, int] = {}
        self.deferred: deque[tuple[int, list[KVCacheBlock]]] = deque()
        self.hits: dict[str, Hit] = {}
        """What each running request took from the cache."""
        self.outdated: set[str] = set()
        """Requests that run on KV of old weights."""
        self.finished: list[list[int]] = []
        """Tokens of all requests so far, for later ones to share."""
        self.policies = (WriteGuard(self), WindowRelease(self))  # type: ignore[arg-type]

    # --- requests ------------------------------------------------------------------------------

    def add(self, tokens: Sequence[int], max_tokens: int) -> Request:
        assert len(tokens) + max_tokens <= self.geometry.longest
        request = make_request(tokens, max_tokens, self.geometry.window_block)
        self.requests[request.request_id] = request
        ids = self.ids[request.request_id] = []
        self.contents.extend(ids, tokens)
        self._learn_hashes(request)
        self.waiting.append(request)
        return request

    def _learn_hashes(self, request: Request) -> None:
        ids = np.array(self.ids[request.request_id][: request.num_tokens], np.int64)
        size = self.geometry.window_block
        require(len(request.block_hashes) == len(ids) // size, "hashes of all whole blocks")
        for i, key in enumerate(request.block_hashes):
            known = self.hashed.setdefault(bytes(key), ids[: (i + 1) * size])
            require(len(known) == (i + 1) * size and known[-1] == ids[len(known) - 1], "hash")

    def abort(self, request: Request) -> None:
        """End a request at any moment, as a client may."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED_ABORTED
        self._finish(request)

    def ending(self, request: Request) -> None:
        """A request has ended and still holds its blocks."""

    def _finish(self, request: Request) -> None:
        self.ending(request)
        self.manager.mark_finished(request, (True, False, None)[len(self.finished) % 3])
        self._free(request)
        del self.requests[request.request_id]
        self.finished.append(list(request.all_token_ids))

    def _free(self, request: Request) -> None:
        self.hits.pop(request.request_id, None)
        self.outdated.discard(request.request_id)
        self.worker.tables.pop(request.request_id, None)
        if self._can_free(request):
            self.manager.free(request)
        elif blocks := self.manager.pop_blocks_for_free(request):
            self.deferred.append((self.scheduled, blocks))

    def _can_free(self, request: Request) -> bool:
        """Whether no step in flight may touch a request's blocks."""
        last = self.last_step.get(request.request_id, 0)
        return not self.geometry.defer or last <= self.processed

    def preempt(self, request: Request, drop_output: bool = False) -> None:
        self.running.remove(request)
        self._free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.drop_stale_output = drop_output or (
            request.drop_stale_output and request.num_stale_output_tokens > 0
        )
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        self.waiting.insert(0, request)

    def forget_cache(self) -> None:
        """Weights change while requests run: what is computed so far is exact no longer."""
        self.manager.forget_cache()
        self.outdated = {request.request_id for request in self.running}
        for slots in self.worker.exact:
            slots[:] = 0

    def reset_prefix_cache(self, preempt_all: bool) -> bool:
        if preempt_all:
            while self.running:
                self.preempt(self.running[-1], drop_output=True)
        return self.manager.reset_prefix_cache()

    # --- a step --------------------------------------------------------------------------------

    def schedule(self, budget: int) -> None:
        """Schedule a step of at most `budget` tokens and run it."""
        assert len(self.steps) < self.geometry.depth and budget <= self.geometry.budget
        self.now += 1.0
        self.manager.new_step_starts()
        step = Step(self.scheduled + 1)
        left, preempted = self._schedule_running(step, budget)
        if not preempted:
            self._schedule_waiting(step, left)
        self.scheduled_blocks(step)
        if not step.num_scheduled_tokens:
            return
        self.scheduled += 1
        for name, count in step.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += count
            request.num_in_flight_tokens += count
            self.last_step[name] = self.scheduled
            request.is_prefill_chunk = request.num_computed_tokens < (
                request.num_tokens + request.num_output_placeholders
            )
            if not request.is_prefill_chunk:
                request.num_output_placeholders += 1
        for policy in self.policies:
            policy.scheduled(step)  # type: ignore[arg-type]
        check_windows(self, step.num_scheduled_tokens)
        self._run(step)
        self.steps.append(step)

    def scheduled_blocks(self, step: Step) -> None:
        """A step has its blocks and its tokens are not counted yet: a connector's moment."""

    def held(self) -> list[list[KVCacheBlock]]:
        """Blocks of both pools that others than requests hold."""
        return [[], []]

    def _schedule_running(self, step: Step, left: int) -> tuple[int, bool]:
        preempted = False
        index = 0
        while index < len(self.running) and left > 0:
            request = self.running[index]
            ahead = request.num_output_placeholders
            computed = request.num_computed_tokens
            last = request.num_prompt_tokens + request.max_tokens
            count = min(request.num_tokens + ahead - computed, left)
            if (ahead and computed + 2 - ahead >= last) or count == 0:
                index += 1
                continue
            while (blocks := self.manager.allocate_slots(request, count)) is None:
                victim = self.running[-1]
                if not self._can_free(victim):
                    break
                alone = len(self.running) == 1 and not self.deferred
                require(not alone, "a lone request finds no room", self.geometry)
                self.preempt(victim)
                preempted = True
                if victim is request:
                    break
            if blocks is None:
                break
            for table, ids in zip(
                self.worker.tables[request.request_id], blocks.get_block_ids(), strict=True
            ):
                table.extend(ids)
            step.num_scheduled_tokens[request.request_id] = count
            left -= count
            index += 1
        return left, preempted

    def _schedule_waiting(self, step: Step, left: int) -> None:
        skipped: list[Request] = []
        while self.waiting and left > 0 and len(self.running) < MAX_RUNNING:
            request = self.waiting[0]
            if request.num_stale_output_tokens and not request.drop_stale_output:
                skipped.append(self.waiting.pop(0))
                continue
            if not self._admit(request, step, left):
                idle = not self.running and not self.deferred and not skipped
                require(not idle, "an idle engine admits nothing", self.geometry)
                break
            left -= step.num_scheduled_tokens[request.request_id]
        self.waiting[:0] = skipped

    def _admit(self, request: Request, step: Step, left: int) -> bool:
        manager = self.manager
        expected = expected_hit(self, request)
        blocks, start, junction = manager.get_computed_blocks(request)
        expected.check(self, request, blocks.blocks, start)
        request.shared_prefix_boundary = junction
        count = min(request.num_tokens - start, left)
        admitted = manager.allocate_slots(
            request,
            count,
            num_new_computed_tokens=start,
            new_computed_blocks=blocks,
            full_sequence_must_fit=True,
            has_scheduled_reqs=bool(self.running),
        )
        if admitted is None:
            check_refusal(self, request, expected)
            return False
        require(expected.fits(request, count), "admitted without room for it", request.request_id)
        self._admitted(request, start, count, expected, step)
        return True

    def _admitted(self, request: Request, start: int, count: int, hit: Hit, step: Step) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = start
        del self.ids[request.request_id][request.num_tokens :]  # resampled after a reset
        self.hits[request.request_id] = hit
        self.worker.tables[request.request_id] = tuple(  # type: ignore[assignment]
            list(ids) for ids in self.manager.get_block_ids(request.request_id)
        )
        step.num_scheduled_tokens[request.request_id] = count

    def _run(self, step: Step) -> None:
        chunks = []
        for name, count in step.num_scheduled_tokens.items():
            end = self.requests[name].num_computed_tokens
            ids = np.array(self.ids[name][:end], np.int64)
            require(len(ids) == end, "a step computes tokens that nobody knows")
            chunks.append(Chunk(name, end - count, ids))
        exact = self.worker.run(chunks, getattr(step, WRITE_STARTS))
        for chunk, labels in zip(chunks, exact, strict=True):
            hit = self.hits[chunk.request_id]
            first_exact = hit.full_tokens if hit.is_replay else 0
            wrong = [p for p in range(chunk.first, chunk.end) if not labels[p - chunk.first]]
            outdated = chunk.request_id in self.outdated
            if wrong and wrong[-1] >= first_exact and not outdated:
                raise Violation(f"{chunk.request_id}: {wrong[-1]} is not exact after {hit}")
            if not self.requests[chunk.request_id].is_prefill_chunk:
                ids = self.ids[chunk.request_id]
                token = greedy_token(ids[-1])
                self.contents.extend(ids, [token])
                step.sampled[chunk.request_id] = token

    # --- its output ----------------------------------------------------------------------------

    def deliver(self) -> None:
        """Process the output of the oldest step in flight."""
        step = self.steps.popleft()
        self.processed += 1
        while self.deferred and self.deferred[0][0] <= self.processed:
            self.manager.block_pool.free_blocks(reversed(self.deferred.popleft()[1]))
        for name, count in step.num_scheduled_tokens.items():
            request = self.requests.get(name)
            if request is None:
                continue
            request.num_in_flight_tokens -= count
            stale = request.num_stale_output_tokens > 0
            if stale:
                request.num_stale_output_tokens -= count
            if (stale and request.drop_stale_output) or name not in step.sampled:
                continue
            self._append(request, step.sampled[name], stale)
        for policy in self.policies:
            policy.step_done(step, SimpleNamespace())  # type: ignore[arg-type]

    def _append(self, request: Request, token: int, stale: bool) -> None:
        request.append_output_token_ids(token)
        self._learn_hashes(request)
        if not stale:
            request.num_output_placeholders -= 1
        if request.status == RequestStatus.RUNNING:
            self.manager.cache_blocks(
                request, request.num_computed_tokens - request.num_output_placeholders
            )
        if request.num_output_tokens >= request.max_tokens:
            (self.running if request in self.running else self.waiting).remove(request)
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            self._finish(request)

    def settle(self) -> None:
        """Run until nothing is left."""
        while self.requests or self.steps:
            if len(self.steps) < self.geometry.depth:
                self.schedule(self.geometry.budget)
            if self.steps:
                self.deliver()
