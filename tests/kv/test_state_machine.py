"""The cache manager under random schedules, against a brute-force model of scheduler and worker.

`VLLM_MIMO_HYPOTHESIS=long` runs many more and other examples than the fixed ones.
"""

from __future__ import annotations

import logging
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vllm_mimo.kv.eviction import POLICIES

from . import invariants
from .engine import Engine
from .geometry import Geometry, text

# A refused reset is logged.
logging.getLogger("vllm.v1.core.block_pool").setLevel(logging.ERROR)

LONG = os.environ.get("VLLM_MIMO_HYPOTHESIS") == "long"

PROFILE = settings(
    max_examples=5_000 if LONG else 70,
    stateful_step_count=80 if LONG else 40,
    derandomize=not LONG,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)

BLOCKS = st.sampled_from([(16, 16), (32, 16), (32, 32), (16, 8)])
LENGTHS = st.integers(1, 400)
SEEDS = st.integers(0, 3)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    block, window_block = draw(BLOCKS)
    interval, dense_until = draw(st.sampled_from([(0, 0), (0, 0), (48, 160), (32, 96)]))
    return Geometry(
        block=block,
        window_block=window_block,
        window=draw(st.sampled_from([33, 64])),
        layers=draw(st.integers(1, 3)),
        spare_full=draw(st.integers(0, 30)) * 16 // block,
        spare_window=draw(st.integers(0, 16)) * 16 // window_block,
        budget=draw(st.sampled_from([32, 64, 96])),
        replay=draw(st.sampled_from([True, True, True, False])),
        eviction=draw(st.sampled_from(sorted(POLICIES))),
        tail_interval=interval,
        dense_until=dense_until,
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        depth=draw(st.sampled_from([1, 2, 2])),
        defer=draw(st.sampled_from([False, False, True])),
    )


class Schedules(RuleBasedStateMachine):
    """What clients and vLLM's scheduler may do to the manager, in any order."""

    @initialize(geometry=geometries(), junctions=st.lists(LENGTHS, max_size=2))
    def start(self, geometry: Geometry, junctions: list[int]) -> None:
        self.engine = self.make(geometry)
        self.engine.manager.junctions = lambda request: [
            position for position in junctions if position <= request.num_prompt_tokens
        ]

    def make(self, geometry: Geometry) -> Engine:
        return Engine(geometry)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.settle()
            invariants.check(self.engine)

    def add(self, tokens: list[int], decoded: int) -> None:
        longest = self.engine.geometry.longest
        tokens = tokens[: longest - decoded]
        self.engine.add(tokens, decoded)

    @rule(seed=SEEDS, length=LENGTHS, decoded=st.integers(1, 60))
    def fresh_request(self, seed: int, length: int, decoded: int) -> None:
        self.add(text(seed, length), decoded)

    @precondition(lambda self: self.engine.finished)
    @rule(
        which=st.integers(0, 7),
        seed=SEEDS,
        length=st.integers(1, 100),
        decoded=st.integers(1, 60),
    )
    def next_turn(self, which: int, seed: int, length: int, decoded: int) -> None:
        earlier = self.engine.finished[-1 - which % len(self.engine.finished)]
        self.add(earlier + text(seed, length), decoded)

    @precondition(lambda self: self.engine.finished or self.engine.requests)
    @rule(
        which=st.integers(0, 7),
        shared=LENGTHS,
        seed=SEEDS,
        length=st.integers(1, 200),
        decoded=st.integers(1, 40),
    )
    def sibling(self, which: int, shared: int, seed: int, length: int, decoded: int) -> None:
        others = [list(request.all_token_ids) for request in self.engine.requests.values()]
        others += self.engine.finished
        self.add(others[-1 - which % len(others)][:shared] + text(seed, length), decoded)

    def step(self, tokens: int) -> None:
        while len(self.engine.steps) >= self.engine.geometry.depth:
            self.engine.deliver()
        self.engine.schedule(min(tokens, self.engine.geometry.budget))

    @precondition(lambda self: self.engine.requests)
    @rule(tokens=st.integers(1, 96))
    def schedule(self, tokens: int) -> None:
        self.step(tokens)

    @precondition(lambda self: self.engine.requests)
    @rule(tokens=st.sampled_from([32, 64, 96]), steps=st.integers(2, 20))
    def schedule_many(self, tokens: int, steps: int) -> None:
        for _ in range(steps):
            self.step(tokens)
            invariants.check(self.engine)

    @precondition(lambda self: self.engine.steps)
    @rule()
    def deliver(self) -> None:
        self.engine.deliver()

    @precondition(lambda self: self.engine.requests)
    @rule()
    def settle(self) -> None:
        self.engine.settle()

    @precondition(lambda self: self.engine.requests)
    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        requests = list(self.engine.requests.values())
        self.engine.abort(requests[which % len(requests)])

    @precondition(lambda self: self.engine.running)
    @rule(which=st.integers(0, 3))
    def preempt(self, which: int) -> None:
        request = self.engine.running[which % len(self.engine.running)]
        if self.engine._can_free(request):
            self.engine.preempt(request)

    @rule(preempt_all=st.booleans())
    def reset_prefix_cache(self, preempt_all: bool) -> None:
        preempt_all = preempt_all and not self.engine.geometry.defer
        idle = not self.engine.running and not self.engine.deferred
        assert self.engine.reset_prefix_cache(preempt_all) == (idle or preempt_all)

    @precondition(lambda self: self.engine.running)
    @rule()
    def release_outside_window(self) -> None:
        invariants.check_released(self.engine)

    @rule(blocks=st.sets(st.integers(1, 60), min_size=1, max_size=12))
    def forget_blocks(self, blocks: set[int]) -> None:
        most = self.engine.geometry.full_blocks
        self.engine.manager.evict_blocks({block for block in blocks if block < most})

    @precondition(lambda self: self.engine.running)
    @rule()
    def forget_cache(self) -> None:
        self.engine.forget_cache()

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "engine"):
            invariants.check(self.engine)


def test_schedules() -> None:
    run_state_machine_as_test(Schedules, settings=PROFILE)
