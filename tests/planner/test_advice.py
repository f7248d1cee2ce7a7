"""Advice follows from the numbers, in either direction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_mimo.planner import advice
from vllm_mimo.planner.gpus import find_gpu
from vllm_mimo.planner.inputs import parse_mix
from vllm_mimo.planner.models import find_model
from vllm_mimo.planner.placement import place
from vllm_mimo.planner.plan import Sizing, size
from vllm_mimo.planner.serving import Serving

V25 = find_model("MiMo-V2.5")
H200 = find_gpu("H200")
EIGHT = place(V25.geometry, 8)
SERVING = Serving(1 << 20, 8192, 1024)
LONG = parse_mix("32k:0.5,128k:0.5")
SHORT = parse_mix("2k:1")


@pytest.fixture(scope="module")
def sizing() -> Sizing:
    return size(V25, H200, EIGHT, SERVING)


def test_alternatives_halve_tp_and_ep_and_their_numbers_are_a_plans_own():
    found = advice.alternatives(V25, H200, EIGHT, SERVING, LONG, 0.9)
    assert [(other.tp, other.ep) for other in found] == [(8, 8), (4, 8), (4, 4), (2, 4)]
    assert [other.replicas for other in found] == [1, 2, 2, 4]
    again = size(V25, H200, place(V25.geometry, 8, 4, 4), SERVING)
    assert found[2].concurrent == again.total_concurrent(LONG)
    assert found[2].weights == again.memory.stage_weights(0)


def test_half_the_ep_is_refused_for_long_contexts_and_advised_for_a_full_house():
    found = advice.alternatives(V25, H200, EIGHT, SERVING, LONG, 0.9)
    whole, half = advice.best(found, 8), advice.best(found, 4)
    assert whole is not None
    assert half is not None
    assert half.concurrent < advice.ENOUGH * whole.concurrent
    assert not advice.is_enough(half, whole, 1024)
    assert advice.is_enough(half, whole, half.concurrent // half.replicas)
    assert advice.is_enough(half, replace(whole, concurrent=half.concurrent), 1024)


def test_what_does_not_fit_says_why_and_is_never_advised():
    pro = find_model("MiMo-V2.5-Pro")
    placement = place(pro.geometry, 16)
    found = advice.alternatives(pro, H200, placement, SERVING, LONG, 0.9)
    halves = [other for other in found if other.ep == 8]
    assert halves
    assert all("nothing is left for KV" in str(other.error) for other in halves)
    assert advice.best(found, 8) is None
    assert not advice.is_enough(None, advice.best(found, 16), 1024)


def test_a_split_is_advised_that_runs_more(sizing: Sizing):
    split = advice.split_advice(sizing.pools, V25, 8, SHORT, sizing.memory.budgets)
    assert split.binding == "SWA"
    assert split.spare_tails == 0
    assert split.balanced_concurrent > 2 * split.concurrent
    split = advice.split_advice(sizing.pools, V25, 8, LONG, sizing.memory.budgets)
    assert split.binding == "full"
    assert split.spare_tails > split.concurrent
    assert split.concurrent < split.balanced_concurrent < 1.1 * split.concurrent


def test_graphs_that_no_batch_reaches_are_named(sizing: Sizing):
    sizes = sizing.memory.graph_sizes
    graphs = advice.graph_advice(sizes, 48, sizing.pools, LONG)
    assert graphs.needed == sizing.pools.concurrent(LONG)[0]
    assert graphs.keep >= graphs.needed
    assert graphs.keep in sizes
    assert graphs.unused == sum(size > graphs.keep for size in sizes) > 0
    assert graphs.freed * graphs.sizes == graphs.size * graphs.unused
    few = [size for size in sizes if size <= 256]
    graphs = advice.graph_advice(few, 48, sizing.pools, SHORT)
    assert graphs.needed > graphs.largest == graphs.keep == 256
    assert graphs.unused == 0
