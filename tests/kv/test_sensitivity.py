"""The model of the worker notices each way in which a replay could spoil KV."""

from __future__ import annotations

import dataclasses

import pytest

from vllm_mimo.kv.pools import WindowManager
from vllm_mimo.kv.tails import TailPlan

from . import invariants
from .engine import Engine
from .geometry import Geometry, text
from .worker import Violation

GEOMETRY = Geometry(window=64, spare_full=200, spare_window=60, longest=1024, depth=1)


def replays(engine: Engine) -> None:
    """One request that replays to its end and one that ends early, then one that uses both."""
    shared = text(0, 500)
    requests = [shared + text(1, 100), shared + text(2, 100), shared[:400] + text(3, 100)]
    for tokens in requests[:2]:
        engine.add(tokens, 4)
        while engine.requests:
            engine.schedule(64)
            invariants.check(engine)
            engine.deliver()
    request = engine.add(requests[2], 4)
    engine.schedule(64)
    engine.deliver()
    engine.schedule(64)
    engine.deliver()
    assert engine.hits[request.request_id].is_replay
    engine.abort(request)
    invariants.check(engine)


def test_the_scenario_holds():
    replays(Engine(GEOMETRY))


def test_a_bound_that_is_a_layer_short():
    engine = Engine(GEOMETRY)
    rule = engine.manager.rule
    short = GEOMETRY.bound - (GEOMETRY.window - 1)
    engine.manager.rule = dataclasses.replace(rule, replay_bound=short)
    with pytest.raises(Violation, match="starts at"):
        replays(engine)


def test_a_bound_that_is_a_layer_short_gives_wrong_output(monkeypatch):
    """The same with a look-up that expects the short bound: the labels tell."""
    short = GEOMETRY.bound - (GEOMETRY.window - 1)
    engine = Engine(GEOMETRY)
    engine.manager.rule = dataclasses.replace(engine.manager.rule, replay_bound=short)
    monkeypatch.setattr(Geometry, "bound", short)
    with pytest.raises(Violation, match="is not exact"):
        replays(engine)


def test_full_kv_that_a_replay_overwrites(monkeypatch):
    engine = Engine(GEOMETRY)
    engine.worker.parts = []
    with pytest.raises(Violation, match="not exact"):
        replays(engine)


def test_a_scheduler_that_tells_no_write_starts(monkeypatch):
    engine = Engine(GEOMETRY)
    policy = engine.policies[0]
    monkeypatch.setattr(policy, "scheduled", lambda step: setattr(step, "mimo_write_starts", {}))
    with pytest.raises(Violation, match="not exact"):
        replays(engine)


def test_an_end_that_is_kept_although_it_is_not_exact(monkeypatch):
    keep_end = WindowManager.keep_end

    def careless(self, request, num_tokens):
        self.plan(request.request_id).exact_from = 0
        return keep_end(self, request, num_tokens)

    monkeypatch.setattr(WindowManager, "keep_end", careless)
    with pytest.raises(Violation, match=r"pool 1 .* is not exact"):
        replays(Engine(GEOMETRY))


def test_tails_that_are_kept_although_they_are_not_exact(monkeypatch):
    mask = TailPlan.mask

    def careless(self, start, end):
        self.exact_from = 0
        return mask(self, start, end)

    monkeypatch.setattr(TailPlan, "mask", careless)
    with pytest.raises(Violation, match=r"pool 1 .* is not exact"):
        replays(Engine(GEOMETRY))


def test_a_release_that_takes_a_block_of_the_window(monkeypatch):
    skipped = WindowManager.get_num_skipped_tokens
    monkeypatch.setattr(
        WindowManager,
        "get_num_skipped_tokens",
        lambda self, computed: skipped(self, computed + 2 * self.block_size),
    )
    with pytest.raises(Violation):
        replays(Engine(GEOMETRY))


def test_blocks_that_are_not_freed(monkeypatch):
    engine = Engine(GEOMETRY)
    monkeypatch.setattr(engine.manager, "free", lambda request: None)
    with pytest.raises(Violation, match="references"):
        replays(engine)
