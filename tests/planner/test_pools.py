"""The two pools' numbers against hand computations."""

from __future__ import annotations

import pytest

from tests.paths import real_config
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.kv.sizing import PoolSizeError
from vllm_mimo.planner.inputs import MixPart, PlanError
from vllm_mimo.planner.memory import capture_sizes
from vllm_mimo.planner.pools import plan_pools, stage_shapes
from vllm_mimo.planner.serving import Serving, buckets

V25 = TextGeometry.from_config(real_config("MiMo-V2.5"))
PRO = TextGeometry.from_config(real_config("MiMo-V2.5-Pro"))
SERVING = Serving(131_072, 8192, 1024, block_size=16)
GB = 10**9


def one(tokens: int) -> tuple[MixPart, ...]:
    return (MixPart(tokens, 1.0),)


def test_a_request_of_v25_at_tp8_by_hand():
    pools = plan_pools(V25, 8, SERVING, [20 * GB])
    assert pools.full_block_bytes == 16 * 9 * (192 + 128) * 2
    assert pools.window_block_bytes == 16 * 39 * (192 + 128) * 2
    charge = pools.charge(32_768)
    # 127 tokens before the current ones, one of each of two steps, and an unaligned start.
    assert (charge.full_blocks, charge.window_blocks) == (2048, 9 + 1)
    assert charge.total_bytes == 2048 * 92_160 + 10 * 399_360
    assert pools.charge(16).window_blocks == 2
    assert pools.in_flight_blocks == 2 * 8192 // 16


def test_concurrency_is_what_the_smaller_pool_allows():
    pools = plan_pools(V25, 8, SERVING, [20 * GB])
    long, short = pools.concurrent(one(65_536)), pools.concurrent(one(1024))
    assert long == ((pools.full_blocks - 1) // 4096, "full")
    assert short == ((pools.window_blocks - 1 - 1024) // 10, "SWA")
    half = (MixPart(65_536, 0.5), MixPart(1024, 0.5))
    by_full, by_window = (pools.full_blocks - 1) / (2048 + 32), (pools.window_blocks - 1025) / 10
    assert pools.concurrent(half)[0] == int(min(by_full, by_window))


def test_the_pools_fit_the_budget_and_leave_less_than_a_block_each():
    pools = plan_pools(V25, 8, SERVING, [20 * GB])
    used = pools.full_blocks * pools.full_block_bytes
    used += pools.window_blocks * pools.window_block_bytes
    assert 20 * GB - pools.full_block_bytes < used <= 20 * GB


def test_the_balanced_fraction_fills_both_pools():
    mix = (MixPart(1024, 0.7), MixPart(8192, 0.3))
    pools = plan_pools(V25, 8, SERVING, [20 * GB])
    fraction = pools.balanced_fraction(mix)
    settings = Serving(131_072, 8192, 1024, window_fraction=fraction, block_size=16)
    balanced = plan_pools(V25, 8, settings, [20 * GB])
    assert balanced.concurrent(mix)[0] > pools.concurrent(mix)[0]
    mean, requests = balanced.mean_charge(mix), balanced.concurrent(mix)[0]
    assert requests * mean.full_blocks == pytest.approx(balanced.full_blocks, rel=0.01)
    windows = balanced.window_blocks - 1 - balanced.in_flight_blocks
    assert requests * mean.window_blocks == pytest.approx(windows, rel=0.01)


@pytest.mark.parametrize("tp, full, swa", [(1, 23_040, 199_680), (8, 5_760, 24_960)])
def test_bytes_per_token(tp: int, full: int, swa: int):
    (shape,) = stage_shapes(V25, tp, SERVING)
    assert (shape.full_bytes, shape.window_bytes) == (full, swa)


def test_fp8_halves_and_mtp_adds_layers():
    (fp8,) = stage_shapes(PRO, 8, Serving(4096, 8192, 64, "fp8"))
    (mtp,) = stage_shapes(PRO, 8, Serving(4096, 8192, 64, mtp=3))
    assert (fp8.full_bytes, fp8.window_bytes) == (3200, 19_200)
    assert mtp.window_bytes == 63 * 640


def test_stages_share_block_ids_so_the_tightest_decides():
    serving = Serving(131_072, 8192, 1024, pp=2, block_size=16)
    pools = plan_pools(V25, 4, serving, [10 * GB, 4 * GB])
    tight = plan_pools(V25, 4, serving, [40 * GB, 4 * GB])
    assert (pools.full_blocks, pools.window_blocks) == (tight.full_blocks, tight.window_blocks)
    assert sum(demand.full_block_bytes for demand in pools.demands) == 16 * 9 * 640
    with pytest.raises(PlanError, match="stage 1 without a full-attention layer"):
        stage_shapes(V25, 1, Serving(4096, 8192, 64, pp=24))


def test_a_budget_for_less_than_one_request_names_both_numbers():
    with pytest.raises(PoolSizeError, match=r"100,000,000 bytes.*needs 8,193 and 1,034"):
        plan_pools(V25, 8, SERVING, [100_000_000])


def test_buckets_end_where_the_model_does():
    assert list(buckets(1 << 20)) == [
        ("0-64K", 65_536),
        ("64K-256K", 262_144),
        ("256K-1M", 1_048_576),
    ]
    assert list(buckets(100_000)) == [("0-64K", 65_536), ("64K-100,000", 100_000)]


def test_capture_sizes_are_vllms_defaults():
    sizes = capture_sizes(1024, 8192)
    assert len(sizes) == 51  # as vLLM's log counts them
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-2:] == (496, 512)
    assert capture_sizes(10, 8192) == (1, 2, 4, 8, 10, 16)
    assert capture_sizes(4, 8192, query_len=3) == (1, 2, 3, 4, 6, 8, 12, 16, 24)
    assert capture_sizes(1024, 1) == (1,)
