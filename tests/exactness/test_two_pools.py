"""Two KV pools give the output of an engine without a cache, while everything happens to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine import Engine
from tests.exactness.oracle import NEAR_TIE, Logits, transformers_model
from tests.exactness.sessions import Played, Turn, play, workload
from vllm_mimo.tiny.checkpoints import trained_folder

CASES = {
    # A small full-attention pool and room for tails; short sessions.
    "tight full pool": (
        {"num_gpu_blocks_override": 60, "max_model_len": 2048},
        {"swa_pool_blocks": 40},
        workload(sessions=58, turns=7, seed=7, longest=1900),
        ("full_evicted", "evicted_full", "capacity", "vllm:num_preemptions", "aborted"),
    ),
    # A small SWA pool: tails are gone when a long session comes back.
    "tight SWA pool": (
        {"num_gpu_blocks_override": 150, "max_model_len": 3072},
        {"swa_pool_blocks": 24},
        workload(sessions=60, turns=7, seed=8, longest=2900, long_share=0.6),
        ("swa_evicted", "replays", "no_tail", "capacity", "aborted_mid_prefill"),
    ),
}


@pytest.fixture(scope="module")
def uncached():
    """vLLM's own pool and no cache: the run to compare with."""
    with Engine(
        trained_folder(),
        max_model_len=3072,
        max_num_batched_tokens=3072,
        enable_prefix_caching=False,
        additional_config={"mimo": {"two_pools": False}},
    ) as engine:
        yield engine


@pytest.mark.parametrize("case", CASES)
def test_exact_under_pressure(case: str, uncached: Engine):
    limits, keys, sessions, expected = CASES[case]
    played = run(sessions, limits, keys)
    print(case, played.figures)
    assert len(played.prompts) >= 150  # 300 in both cases
    for what in expected:
        assert played.figures[what] > 0, f"{what}: did not happen, so it was not tested"
    assert played.figures["held_full"] == played.figures["held_swa"] == 0
    wrong = differing(played, uncached)
    assert len(wrong) <= 0.001 * len(played.prompts), wrong
    check_ties(transformers_model(trained_folder()), played, wrong)


def test_a_replay_that_is_too_short_is_noticed(uncached: Engine):
    """So the comparison above would notice an inexact window. (`tests/kv` finds a single layer.)"""
    limits, keys, sessions, _ = CASES["tight SWA pool"]
    played = run(sessions[:20], limits, keys, shorten=8)
    assert played.figures["replays"] > 0
    assert differing(played, uncached)


def run(
    sessions: list[list[Turn]], limits: dict[str, Any], keys: dict[str, Any], shorten: int = 0
) -> Played:
    with Engine(
        trained_folder(), max_num_batched_tokens=192, additional_config={"mimo": keys}, **limits
    ) as engine:
        if shorten:
            engine.run(shorten_replays, shorten)
        return engine.run(play, sessions, 1, 8, 0.01)


def shorten_replays(llm: Any, layers: int) -> None:
    """Let replays start too late, by so many SWA layers."""
    import dataclasses

    manager = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    rule = manager.rule
    bound = rule.replay_bound - layers * (rule.window - 1)
    manager.rule = dataclasses.replace(rule, replay_bound=bound)


def differing(played: Played, uncached: Engine) -> list[int]:
    """Requests whose output is not the one without a cache."""
    wrong = []
    for length in sorted({len(output) for output in played.outputs}):
        same = [i for i, output in enumerate(played.outputs) if len(output) == length]
        again = uncached.generate([played.prompts[i] for i in same], length)
        wrong += [i for i, o in zip(same, again, strict=True) if o.tokens != played.outputs[i]]
    return wrong


def check_ties(logits: Logits, played: Played, wrong: Sequence[int]) -> None:
    """Where outputs differ, the oracle's two best logits must nearly tie."""
    for i in wrong:
        prompt, output = played.prompts[i], played.outputs[i]
        best = logits([*prompt, *output])[len(prompt) - 1 : -1].topk(2, dim=-1)
        step = next(s for s, token in enumerate(output) if token != best.indices[s, 0])
        gap = float(best.values[step, 0] - best.values[step, 1])
        assert gap < NEAR_TIE, f"request {i}, step {step}: gap {gap:.2e}"
