"""What a request recomputes, case by case."""

from __future__ import annotations

import pytest

from . import invariants
from .engine import Engine
from .geometry import Geometry, text

ROOMY = Geometry(spare_full=400, spare_window=200, longest=2048, budget=256)


def serve(engine: Engine, tokens: list[int], decoded: int = 1) -> tuple[int, int]:
    """Serve one request alone.

    Returns:
        The first token that it computes, and the end of its full-attention hit.
    """
    request = engine.add(tokens, decoded)
    engine.schedule(engine.geometry.budget)
    hit = engine.hits[request.request_id]
    while engine.requests:
        engine.deliver()
        invariants.check(engine)
        if engine.requests and not engine.steps:
            engine.schedule(engine.geometry.budget)
    return hit.start, hit.full_tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("replay", [True, False])
def test_the_next_turn_reuses_a_long_output(depth, replay):
    engine = Engine(Geometry(**{**vars(ROOMY), "depth": depth, "replay": replay}))
    engine.add(text(0, 200), 600)
    engine.settle()
    turn = engine.finished[-1]
    assert len(turn) == 800
    # The last token is sampled and has no KV: 799 // 16 * 16.
    assert serve(engine, turn + text(1, 50)) == (784, 784)


def test_a_resend_recomputes_the_last_block():
    engine = Engine(ROOMY)
    serve(engine, text(0, 320))
    assert serve(engine, text(0, 320)) == (304, 304)


@pytest.mark.parametrize("window_block", [8, 16])
def test_a_foreseen_junction_costs_a_block(window_block):
    engine = Engine(Geometry(**{**vars(ROOMY), "window_block": window_block}))
    engine.manager.junctions = lambda request: [500]
    serve(engine, text(0, 900))
    start, full = serve(engine, text(0, 500) + text(1, 100))
    assert (start, full) == (496, 496)


@pytest.mark.parametrize("layers", [1, 2, 3, 16])
@pytest.mark.parametrize("window", [33, 64])
def test_an_unforeseen_junction_costs_a_replay_once(layers, window):
    geometry = Geometry(**{**vars(ROOMY), "layers": layers, "window": window})
    engine = Engine(geometry)
    shared = text(0, 1100)
    serve(engine, shared + text(1, 600))
    start, full = serve(engine, shared + text(2, 100))
    assert full == 1088
    least = max(0, full - geometry.bound - -(geometry.window - 1) % geometry.window_block)
    assert 0 <= least - start < geometry.window_block
    assert serve(engine, shared + text(3, 100)) == (1088, 1088)


def test_a_near_tail_is_cheaper_than_a_replay():
    geometry = Geometry(**{**vars(ROOMY), "tail_interval": 320, "dense_until": 1600})
    engine = Engine(geometry)
    serve(engine, text(0, 1600))
    assert serve(engine, text(0, 1000) + text(1, 50)) == (960, 992)


def test_without_replay_the_hit_ends_at_a_tail():
    geometry = Geometry(**{**vars(ROOMY), "replay": False, "tail_interval": 320})
    engine = Engine(Geometry(**{**vars(geometry), "dense_until": 640}))
    serve(engine, text(0, 1600))
    assert serve(engine, text(0, 1000) + text(1, 50)) == (640, 640)


@pytest.mark.parametrize("budget", [16, 48, 64, 96, 144])
@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_a_replay_that_ends_early_publishes_nothing_inexact(budget, end):
    geometry = Geometry(**{**vars(ROOMY), "window": 64, "depth": 1})
    engine = Engine(geometry)
    shared = text(0, 1000)
    serve(engine, shared + text(1, 600))
    request = engine.add(shared + text(2, 100), 1)
    for _ in range(3):
        engine.schedule(budget)
        engine.deliver()
        invariants.check(engine)
        if not engine.requests:
            return
    assert engine.hits[request.request_id].is_replay
    getattr(engine, end)(request)
    invariants.check(engine)
    engine.settle()
    invariants.check(engine)


def test_a_replay_that_just_became_exact_leaves_its_end():
    engine = Engine(Geometry(**{**vars(ROOMY), "depth": 1}))
    shared = text(0, 1000)
    serve(engine, shared + text(1, 600))
    request = engine.add(shared + text(2, 500), 1)
    for _ in range(2):
        engine.schedule(192)
        engine.deliver()
    done = request.num_computed_tokens
    engine.abort(request)
    invariants.check(engine)
    start, full = serve(engine, shared + text(2, 500))
    assert start == full == done // 16 * 16 < 1500


def test_what_is_published_in_a_step_serves_another_request_of_that_step():
    engine = Engine(ROOMY)
    first = engine.add(text(0, 100), 4)
    second = engine.add(text(0, 100) + text(1, 50), 4)
    engine.schedule(256)
    assert engine.hits[first.request_id].start == 0
    assert engine.hits[second.request_id].start == 96
    engine.settle()
    invariants.check(engine)


def test_a_preempted_request_resumes_where_it_was():
    engine = Engine(ROOMY)
    request = engine.add(text(0, 300), 100)
    for _ in range(60):
        engine.schedule(256)
        engine.deliver()
    engine.preempt(request)
    invariants.check(engine)
    done = (request.num_tokens - 1) // 16 * 16
    engine.schedule(256)
    assert engine.hits[request.request_id].start == done > 320
    engine.settle()
    invariants.check(engine)


def test_without_caching_nothing_is_kept():
    engine = Engine(ROOMY, caching=False)
    engine.add(text(0, 300), 10)
    engine.settle()
    assert serve(engine, text(0, 300)) == (0, 0)
    invariants.check(engine)


@pytest.mark.parametrize("window_block", [8, 16])
def test_nothing_is_published_of_what_old_weights_computed(window_block):
    engine = Engine(Geometry(**{**vars(ROOMY), "window_block": window_block}))
    engine.add(text(0, 345), 40)
    engine.schedule(100)
    engine.forget_cache()
    invariants.check(engine)
    while engine.requests:
        engine.schedule(100)
        engine.deliver()
        invariants.check(engine)
    assert serve(engine, text(0, 345)) == (0, 0)
