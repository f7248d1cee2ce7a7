"""The vLLM column is vLLM's own arithmetic; our bytes against it."""

from __future__ import annotations

import pytest

from tests.paths import real_config
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.planner import comparison, upstream
from vllm_mimo.planner.inputs import MixPart
from vllm_mimo.planner.pools import TwoPools, plan_pools
from vllm_mimo.planner.serving import Serving
from vllm_mimo.planner.upstream import VllmPool, layer_specs, plan_upstream, stand_in

V25 = TextGeometry.from_config(real_config("MiMo-V2.5"))
PRO = TextGeometry.from_config(real_config("MiMo-V2.5-Pro"))
SERVING = Serving(1 << 20, 8192, 1024, block_size=16)
BUDGET = 70 * 10**9


def both(geometry: TextGeometry, tp: int, serving: Serving) -> tuple[TwoPools, VllmPool]:
    budgets = [BUDGET] * serving.pp
    return plan_pools(geometry, tp, serving, budgets), plan_upstream(geometry, tp, serving, budgets)


def one(tokens: int) -> tuple[MixPart, ...]:
    return (MixPart(tokens, 1.0),)


@pytest.mark.parametrize("tp", (1, 4, 8))
@pytest.mark.parametrize("tokens", (1000, 32_768, 1 << 20))
def test_reserved_concurrency_is_the_one_that_vllm_reports(tp: int, tokens: int):
    planning = upstream.import_first(upstream.KV_PLANNING_MODULES)
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    config = stand_in(SERVING, tokens, SERVING.in_flight_tokens)
    groups = planning.get_kv_cache_groups(config, layer_specs(V25, tp, SERVING))
    made = planning.get_kv_cache_config_from_groups(config, groups, BUDGET)
    pool = plan_upstream(V25, tp, SERVING, [BUDGET])
    assert pool.num_blocks == made.num_blocks
    assert pool.bytes_per_block * pool.num_blocks == made.kv_cache_tensors[0].size
    expected = int(get_max_concurrency_for_kv_cache_config(config, made))
    assert pool.concurrent(one(tokens), "reserved") == expected


def test_padding_and_unified_blocks_of_v25():
    eight, four = (plan_upstream(V25, tp, SERVING, [BUDGET]) for tp in (8, 4))
    assert [group.layers for group in eight.groups] == [9, 8, 8, 8, 8, 7]
    assert {group.block_size for group in eight.groups} == {16}
    assert [group.block_size for group in four.groups] == [32, 16, 16, 16, 16, 16]
    pools = plan_pools(V25, 8, SERVING, [BUDGET])
    assert comparison.ratio(pools, eight)["vllm_window_padding"] == pytest.approx(6 / 39)


def test_bytes_of_a_running_request_of_v25_at_tp8():
    """SWA: 39 layers' bytes for 45 layers' of vLLM, at every length; whole: while SWA weighs."""
    pools, pool = both(V25, 8, SERVING)
    for tokens in (1024, 32_768, 1 << 20):
        window = pool.request_bytes(tokens, "settled")[1]
        assert pools.charge(tokens).window_bytes / window == pytest.approx(39 / 45)
        assert pools.charge(tokens).full_bytes == pool.request_bytes(tokens, "settled")[0]
    ratio = comparison.ratio(pools, pool)
    assert ratio["window"] == pytest.approx(39 / 45)
    assert ratio["window"] <= comparison.TARGET
    low, high = ratio["reserved_meets_target"]
    assert low == 1024
    assert 500_000 < high < 600_000
    assert ratio["settled_meets_target"] is None


def test_pro_has_nothing_to_pad_and_mtp_fills_v25s_groups():
    pools, pool = both(PRO, 8, SERVING)
    assert comparison.ratio(pools, pool)["window"] == pytest.approx(1.0)
    mtp = Serving(1 << 20, 8192, 1024, mtp=3, block_size=16)
    pools, pool = both(V25, 8, mtp)
    assert comparison.ratio(pools, pool)["window"] == pytest.approx(42 / 45)


def test_settled_counts_the_tokens_in_flight_once():
    pool = plan_upstream(V25, 8, SERVING, [BUDGET])
    blocks = 2048 + 5 * 10
    free = pool.num_blocks - 1 - 5 * 1024
    assert pool.blocks(32_768, "settled") == (2048, 50)
    assert pool.concurrent(one(32_768), "settled") == free // blocks
    assert pool.blocks(32_768, "reserved") == (2048, 5 * ((127 + 16_384 + 15) // 16 + 1))


def test_stages_add_up_and_fp8_halves():
    serving = Serving(1 << 17, 8192, 1024, pp=2, block_size=16)
    staged = plan_upstream(V25, 4, serving, [BUDGET, BUDGET])
    whole = plan_upstream(V25, 4, SERVING, [BUDGET])
    assert [group.layers for group in staged.groups] == [group.layers for group in whole.groups]
    assert whole.bytes_per_block <= staged.bytes_per_block <= 1.2 * whole.bytes_per_block
    fp8 = plan_upstream(V25, 4, Serving(1 << 20, 8192, 1024, "fp8", block_size=16), [BUDGET])
    assert 2 * fp8.bytes_per_block == whole.bytes_per_block


def test_without_vllm_the_reason_is_said(monkeypatch: pytest.MonkeyPatch):
    def missing() -> str:
        raise upstream.UnsupportedVllmError("vLLM is not installed")

    monkeypatch.setattr(upstream, "check_vllm_version", missing)
    with pytest.raises(upstream.UpstreamUnavailable, match="vLLM is not installed"):
        plan_upstream(V25, 8, SERVING, [BUDGET])


def test_a_release_that_plans_otherwise_is_no_crash(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upstream, "_run", lambda *arguments: 1 / 0)
    with pytest.raises(upstream.UpstreamUnavailable, match="planning failed: ZeroDivisionError"):
        plan_upstream(V25, 8, SERVING, [BUDGET])
