"""How many SWA blocks running requests hold, and when they give them back."""

from __future__ import annotations

import pytest

from vllm_mimo.kv.groups import WINDOW_GROUP

from . import invariants
from .engine import Engine
from .geometry import Geometry, text


def held(engine: Engine, name: str) -> int:
    blocks = engine.manager.get_blocks(name).blocks[WINDOW_GROUP]
    return sum(not block.is_null for block in blocks)


@pytest.mark.parametrize("budget", [7, 64])
@pytest.mark.parametrize("window", [17, 33, 34, 64])
def test_the_smallest_pool_holds_a_lone_request(window, budget):
    """Whatever part of a block the window and the tokens in flight begin and end with."""
    geometry = Geometry(window=window, budget=budget, spare_full=0, spare_window=0, depth=1)
    engine = Engine(geometry)
    engine.add(text(0, 300), 60)
    engine.settle()
    invariants.check(engine)


@pytest.mark.parametrize("depth", [1, 2])
def test_decoding_gives_blocks_back_before_the_next_step_is_scheduled(depth):
    engine = Engine(Geometry(depth=depth))
    name = engine.add(text(0, 100), 150).request_id
    given_back = 0
    while engine.requests:
        while len(engine.steps) < depth:
            engine.schedule(64)
        before = held(engine, name)
        engine.deliver()
        if name in engine.requests and engine.requests[name].num_output_tokens > 2:
            given_back += before - held(engine, name)
        if name in engine.requests and engine.requests[name].num_output_tokens > 140:
            break
    assert given_back >= 140 // 16 - 1, "of one block for each 16 tokens"


def test_a_free_block_can_be_shown():
    """As vLLM does in messages."""
    engine = Engine(Geometry())
    engine.add(text(0, 100), 4)
    engine.settle()
    for pool in invariants.pools(engine):
        assert all("KVCacheBlock(block_id=" in repr(block) for block in pool.blocks)
