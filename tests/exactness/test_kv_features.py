"""What two KV pools promise beyond exactness, on the real engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine import Engine
from vllm_mimo.tiny.checkpoints import trained_folder

BLOCK = 64


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        trained_folder(),
        max_num_batched_tokens=512,
        additional_config={"mimo": {"shadow_fraction": 1.0}},
    ) as engine:
        yield engine


def tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2000), k=count)


def test_the_next_turn_after_600_decoded_tokens_reuses_to_the_last_whole_block(engine: Engine):
    prompt = tokens(700, 1)
    (first,) = engine.generate([prompt], 600)
    history = [*prompt, *first.tokens]
    (second,) = engine.generate([[*history, *tokens(50, 2)]], 4)
    # The last sampled token has no KV yet.
    assert second.cached == (len(history) - 1) // BLOCK * BLOCK


def test_the_first_sibling_reuses_a_system_prompt_to_its_last_block(engine: Engine):
    turn = engine.run(turn_start)
    system = [turn, *tokens(1000, 3)]
    engine.generate([[*system, turn, *tokens(300, 4)]], 4)
    (sibling,) = engine.generate([[*system, turn, *tokens(300, 5)]], 4)
    assert sibling.cached >= len(system) // BLOCK * BLOCK


def test_an_unforeseen_junction_costs_the_first_sibling_only(engine: Engine):
    shared = tokens(2000, 6)
    engine.generate([[*shared, *tokens(900, 7)]], 4)
    first, second = (engine.generate([[*shared, *tokens(900, s)]], 4)[0] for s in (8, 9))
    junction = len(shared) // BLOCK * BLOCK
    bound = engine.run(replay_bound)
    assert junction - bound - BLOCK < first.cached <= junction
    assert second.cached == junction


def test_shadow_checks_agree_and_notice_a_broken_cache(engine: Engine):
    prompt = tokens(400, 10)
    prompt += prompt[:40]  # copies, so that what it writes depends on the cache
    engine.generate([prompt], 8)
    before = engine.run(shadow_figures)
    engine.generate([prompt], 8)
    between = engine.run(shadow_figures)
    assert between["checks"] > before["checks"]
    assert between["mismatches"] == before["mismatches"] == 0
    engine.run(spoil_cached_blocks)
    engine.generate([prompt], 8)
    assert engine.run(shadow_figures)["mismatches"] > 0


@pytest.mark.parametrize("how", ("weights", "reset"))
def test_nothing_is_found_after_the_cache_was_dropped(engine: Engine, how: str):
    prompt = tokens(500, 11 + len(how))
    engine.generate([prompt], 4)
    assert engine.generate([prompt], 4)[0].cached > 0
    engine.run(drop, how)
    assert engine.generate([prompt], 4)[0].cached == 0


def _core(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core


def replay_bound(llm: Any) -> int:
    return _core(llm).scheduler.kv_cache_manager.rule.replay_bound


def turn_start(llm: Any) -> int:
    """The token that the scheduler knows as the start of a turn."""
    policies = {type(p).__name__: p for p in _core(llm).scheduler.policies}
    return policies["Junctions"].turn_start


def shadow_figures(llm: Any) -> dict[str, float]:
    """Counters, once the engine has no more checks to run."""
    core = _core(llm)
    while core.scheduler.has_unfinished_requests():
        core.step_fn()
    policies = {type(p).__name__: p for p in core.scheduler.policies}
    values = policies["ShadowCheck"].board.values
    return {name: values[f"shadow_{name}"] for name in ("checks", "mismatches")}


def spoil_cached_blocks(llm: Any) -> None:
    """Put noise of the cache's own size over all full-attention KV."""
    import torch

    from tests.exactness.corruption import FULL, Inside

    inside = Inside(llm)
    generator = torch.Generator().manual_seed(0)
    for group in inside.groups_of(FULL):
        for name in inside.groups[group].layer_names:
            cache = inside.layers[name].kv_cache
            noise = torch.randn(cache.shape, generator=generator)
            cache.copy_(noise * float(cache[1:8].std()))


def drop(llm: Any, how: str) -> None:
    core = _core(llm)
    while core.scheduler.has_unfinished_requests():
        core.step_fn()
    if how == "weights":
        core.set_weight_version("2")
    else:
        assert core.reset_prefix_cache()
