"""A third tier on disk: the same output after a restart, and whatever the engine does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.engine import Engine
from tests.exactness.oracle import transformers_model
from tests.exactness.sessions import play, workload
from tests.exactness.test_two_pools import check_ties, differing
from tests.l3.faulty_engine import set_faults
from tests.tiers.figures import director, drain, tier_figures
from vllm_mimo.tiny.checkpoints import trained_folder

LIMITS: dict[str, Any] = {
    "num_gpu_blocks_override": 60,
    "max_model_len": 2048,
    "max_num_batched_tokens": 192,
}
FAULTY = "tests.l3.faulty_engine:FaultyEngine"


def keys(path: Path, host_gib: float = 0.06, **l3: Any) -> dict[str, Any]:
    return {"mimo": {"host_gib": host_gib, "l3": {"path": str(path), "gib": 0.5, **l3}}}


def remote_figures(llm: Any) -> dict[str, Any]:
    drain(llm)
    remote = director(llm).remote
    assert remote is not None
    reads, writes = remote.reads.counts, remote.writes.counts
    return {
        "fetched_requests": reads.requests,
        "fetched": reads.blocks,
        "failed": reads.failed_blocks,
        "timeouts": reads.timeouts,
        "written": writes.written,
        "keep_alives": writes.keep_alives,
    }


def forget_weights(llm: Any) -> None:
    llm.llm_engine.engine_core.engine_core.scheduler.weights_changed()


PROMPTS = [random.Random(n).choices(range(2000), k=900) for n in range(10)]


@pytest.fixture(scope="module")
def uncached():
    with Engine(
        trained_folder(),
        max_model_len=3072,
        max_num_batched_tokens=3072,
        enable_prefix_caching=False,
        additional_config={"mimo": {"two_pools": False}},
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def cold(uncached: Engine) -> list[tuple[int, ...]]:
    return [o.tokens for o in uncached.generate(PROMPTS, 24)]


def test_cold_device_host_and_disk_after_a_restart_are_one(tmp_path: Path, cold: list) -> None:
    path = tmp_path / "l3"
    with Engine(trained_folder(), additional_config=keys(path), **LIMITS) as engine:
        first = engine.generate(PROMPTS, 24)
        again = engine.generate(PROMPTS, 24)  # from device and host memory
        engine.run(drain)
    assert [o.tokens for o in first] == [o.tokens for o in again] == cold
    assert all(o.cached >= 832 for o in again)
    with Engine(trained_folder(), additional_config=keys(path), **LIMITS) as engine:
        restarted = engine.generate(PROMPTS, 24)
        figures = engine.run(remote_figures)
    assert [o.tokens for o in restarted] == cold
    assert sum(o.cached >= 832 for o in restarted) >= 9, [o.cached for o in restarted]
    assert figures["fetched_requests"] >= 9 and figures["failed"] == 0


def test_new_weights_and_other_tenants_find_nothing(tmp_path: Path, cold: list) -> None:
    path = tmp_path / "l3"
    with Engine(trained_folder(), additional_config=keys(path), **LIMITS) as engine:
        engine.generate(PROMPTS, 24)
        engine.run(drain)
    for other in ({"weight_version": "2"}, {"tenant": "somebody"}):
        with Engine(trained_folder(), additional_config=keys(path, **other), **LIMITS) as engine:
            found = engine.generate(PROMPTS[:4], 24)
            assert [o.cached for o in found] == [0] * 4
            engine.run(forget_weights)
            found = engine.generate(PROMPTS[:4], 24)
            assert [o.cached for o in found] == [0] * 4
            assert [o.tokens for o in found] == cold[:4]


FAULTS = {
    "raises": {"get_into": {"kind": "raise"}},
    "hangs": {"get_into": {"kind": "hang", "seconds": 0.5}},
    "short": {"get_into": {"kind": "short"}},
    "another block's bytes": {"get_into": {"kind": "foreign"}},
    "late into a reused buffer": {"get_into": {"kind": "scribble", "seconds": 0.3}},
    "look-ups hang": {"exists": {"kind": "hang", "seconds": 0.5}},
    "writes fail": {"put": {"kind": "error"}},
}


def test_faults_of_an_engine_change_nothing_but_speed(tmp_path: Path, cold: list) -> None:
    path = tmp_path / "l3"
    faulty = keys(path, engine=FAULTY, timeout_s=0.05, breaker_s=0.05, wait_s=0.3)
    with Engine(trained_folder(), additional_config=faulty, **LIMITS) as engine:
        engine.generate(PROMPTS, 24)
        engine.run(drain)
        seen = []
        for name, faults in FAULTS.items():
            engine.run(empty_upper_tiers)
            set_faults(str(path), faults)
            outputs = [o.tokens for o in engine.generate(PROMPTS, 24)]
            set_faults(str(path), {})
            assert outputs == cold, name
            seen.append((name, engine.run(remote_figures)))
        engine.run(empty_upper_tiers)
        assert [o.tokens for o in engine.generate(PROMPTS, 24)] == cold
    print(seen)
    assert seen[-1][1]["failed"] > 0 and seen[-1][1]["fetched"] > 0


def empty_upper_tiers(llm: Any) -> None:
    """Leave everything to L3."""
    drain(llm)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    assert scheduler.reset_prefix_cache()
    for host in director(llm).hosts:
        host.forget()


def test_exact_while_requests_come_and_go(tmp_path: Path, uncached: Engine) -> None:
    sessions = workload(sessions=30, turns=6, seed=27, longest=1900)
    with Engine(
        trained_folder(),
        additional_config=keys(tmp_path / "l3", host_gib=0.015, wait_s=0.5),
        **LIMITS,
    ) as engine:
        played = engine.run(play, sessions, 1, 8, 0.01)
        played.figures |= engine.run(tier_figures) | engine.run(remote_figures)
    print(played.figures)
    for what in (
        "fetched",
        "written",
        "keep_alives",
        "loaded_full",
        "host_full_evicted",
        "aborted",
    ):
        assert played.figures[what] > 0, f"{what}: did not happen, so it was not tested"
    assert played.figures["held_full"] == played.figures["held_swa"] == 0
    wrong = differing(played, uncached)
    assert len(wrong) <= 0.001 * len(played.prompts), wrong
    check_ties(transformers_model(trained_folder()), played, wrong)
