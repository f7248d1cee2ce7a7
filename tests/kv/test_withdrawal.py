"""A step that is called off: blocks published for it hold nothing and must not be found.

vLLM publishes blocks when it allocates them. Under priority scheduling it may preempt a request
that is in the step already.
"""

from __future__ import annotations

from typing import Any

from vllm_mimo.replay.deployment import Deployment, load_geometry
from vllm_mimo.replay.mimo_policy import MimoPolicy
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.traces.form import TraceRequest

BLOCK = 64


def driver() -> Any:
    deployment = Deployment(load_geometry("MiMo-V2.5", 8), 8, 16_384, BLOCK, 2048, 1)
    return MimoPolicy("mimo", deployment, {}).build(2 * 10**9, lambda: 0.0)


def request(number: int, blocks: int) -> ReplayRequest:
    trace = TraceRequest(0.0, "", blocks * BLOCK, 8, BLOCK, prompt_blocks=((0, blocks),))
    return ReplayRequest(trace, number, BLOCK)


def test_a_chunk_that_never_ran_is_not_found() -> None:
    made = driver()
    victim = request(1, 32)
    assert made.admit(victim, made.lookup(victim), 1024, idle=True)
    # Preempted in the same step: its tokens were allocated, but do not count as computed.
    victim.num_computed_tokens = 0
    made.preempt(victim)
    assert made.lookup(request(2, 32)).cached == 0


def test_what_was_computed_before_stays() -> None:
    made = driver()
    victim = request(1, 32)
    assert made.admit(victim, made.lookup(victim), 1024, idle=True)
    assert made.step(victim, 512)
    victim.num_computed_tokens = 1024
    made.preempt(victim)
    found = made.lookup(request(2, 32))
    assert found.cached == 1024
    assert found.resume == 1024, "the tail at the end of what was computed is kept"
