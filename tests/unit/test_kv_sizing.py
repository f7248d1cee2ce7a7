"""Sizes of the two pools: figures computed by hand for the real models, and the split."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.paths import real_config
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.kv.sizing import (
    KVShape,
    PoolDemand,
    PoolSizeError,
    running_blocks,
    tail_blocks,
)

# Layers, KV heads and head widths as the models' cards give them: K 192 and V 128 wide, bf16.
V25_FULL = 9 * 4 * (192 + 128) * 2
V25_SWA = 39 * 8 * (192 + 128) * 2
PRO_FULL = 10 * 8 * (192 + 128) * 2
PRO_SWA = 60 * 8 * (192 + 128) * 2


def shape(name: str, **more: int) -> KVShape:
    return KVShape.from_geometry(TextGeometry.from_config(real_config(name)), **more)


def test_bytes_and_bounds_of_the_real_models() -> None:
    v25 = shape("MiMo-V2.5")
    assert (v25.full_bytes, v25.window_bytes) == (V25_FULL, V25_SWA) == (23_040, 199_680)
    assert (v25.window_layers, v25.window, v25.replay_bound) == (39, 128, 4_953)
    pro = shape("MiMo-V2.5-Pro")
    assert (pro.full_bytes, pro.window_bytes) == (PRO_FULL, PRO_SWA) == (51_200, 307_200)
    assert (pro.window_layers, pro.window, pro.replay_bound) == (60, 128, 7_620)


def test_a_rank_keeps_its_heads_and_at_least_one() -> None:
    quarter = shape("MiMo-V2.5", tensor_parallel=4)
    assert (quarter.full_bytes, quarter.window_bytes) == (V25_FULL // 4, V25_SWA // 4)
    assert quarter.replay_bound == 4_953, "layers, not heads"
    eighth = shape("MiMo-V2.5", tensor_parallel=8)
    assert eighth.full_bytes == V25_FULL // 4, "4 heads on 8 ranks: each is held twice"
    assert eighth.window_bytes == V25_SWA // 8
    one_byte = shape("MiMo-V2.5", dtype_bytes=1)
    assert one_byte.full_bytes == V25_FULL // 2


def test_each_mtp_layer_in_use_widens_a_replay() -> None:
    with_mtp = shape("MiMo-V2.5", mtp=3)
    assert with_mtp.replay_bound == 42 * 127 == 5_334
    assert with_mtp.window_bytes == 42 * 8 * 320 * 2


@pytest.mark.parametrize(
    ("window", "block", "tail", "running_1", "running_4096"),
    [
        (128, 64, 2, 3, 67),  # 127 -> 2 blocks; 128 + one more; 4223 tokens -> 66 blocks + 1
        (128, 16, 8, 9, 265),
        (128, 128, 1, 2, 34),
        (129, 64, 2, 3, 67),
        (128, 1, 127, 128, 4223),
        (1, 64, 0, 1, 65),
    ],
)
def test_blocks_of_a_tail_and_of_a_running_request(window, block, tail, running_1, running_4096):
    assert tail_blocks(window, block) == tail
    assert running_blocks(window, block, 1) == running_1
    assert running_blocks(window, block, 4096) == running_4096


@given(st.integers(2, 300), st.integers(1, 128), st.integers(1, 5000), st.integers(0, 10**6))
def test_a_running_request_never_holds_more_than_its_bound(window, block, step, start) -> None:
    """Blocks that a step from any position touches: its own tokens and the window below them."""
    first = max(0, start - (window - 1)) // block
    last = (start + step - 1) // block
    assert last - first + 1 <= running_blocks(window, block, step)


def demand(max_model_len: int = 32_768, **more: int) -> PoolDemand:
    """V2.5 on one rank, blocks of 64 tokens, two steps of 8,192 tokens in flight."""
    values = {
        "full_block_size": 64,
        "window_block_size": 64,
        "full_block_bytes": 64 * V25_FULL,
        "window_block_bytes": 64 * V25_SWA,
        "window": 128,
        "max_model_len": max_model_len,
        "in_flight_tokens": 16_384,
        "max_num_seqs": 256,
    }
    return PoolDemand(**{**values, **more})


def test_the_automatic_split_fills_both_pools_with_the_same_sessions() -> None:
    """After the tokens in flight, as many sessions of 32,768 tokens fit the one as the other."""
    budget = 200 * 10**9
    split = demand().split(budget)
    sessions = (split.window_blocks - 256) // 7  # window and two tails of 2 blocks, one more
    assert (split.window_blocks - 256) % 7 == 0
    assert sessions == (budget - 256 * 64 * V25_SWA) // (512 * 64 * V25_FULL + 7 * 64 * V25_SWA)
    assert 0 <= split.full_blocks - 512 * sessions < 512 + 7 * 9
    assert budget - 64 * V25_FULL < split.total_bytes <= budget


def test_windows_of_many_running_requests_get_a_share_where_sessions_would_give_less() -> None:
    """One rank of V2.5 at TP8, whose full-attention KV is small beside the SWA layers'."""
    full, window, budget = 64 * 5_760, 64 * 24_960, 20 * 10**9
    rank = {"full_block_bytes": full, "window_block_bytes": window, "max_model_len": 1_000_000}
    rest = budget - 256 * window
    sessions = rest // (2048 * full + 7 * window)
    assert (sessions * 7, rest // 25 // window) == (175, 490)
    assert demand(**rank).split(budget).window_blocks == 256 + 490
    assert demand(**rank, max_num_seqs=70).split(budget).window_blocks == 256 + 70 * 3
    assert demand(**rank, max_num_seqs=50).split(budget).window_blocks == 256 + 175


def test_a_fraction_is_a_share_of_the_bytes() -> None:
    budget = 100 * 10**9
    split = demand().split(budget, 0.25)
    assert split.window_blocks == budget // 4 // (64 * V25_SWA)
    assert split.full_blocks == (budget - split.window_blocks * 64 * V25_SWA) // (64 * V25_FULL)


def test_the_swa_pool_holds_one_request_however_small_the_fraction() -> None:
    # 127 + 16,384 tokens are 258 blocks, one for where they start, one null block.
    assert demand().window_blocks_per_request == 259
    assert demand().split(10**10, 0.001).window_blocks == 260
    short = demand(max_model_len=100)
    assert short.window_blocks_per_request == 3, "shorter than a window: no more than it is long"


def test_the_error_gives_what_there_is_and_what_one_request_needs() -> None:
    wanted = demand(max_model_len=1_000_000)
    needed = 15_626 * 64 * V25_FULL + 260 * 64 * V25_SWA
    with pytest.raises(PoolSizeError) as caught:
        wanted.split(10**10, 0.5)
    message = str(caught.value)
    window = 5 * 10**9 // (64 * V25_SWA)
    full = (10**10 - window * 64 * V25_SWA) // (64 * V25_FULL)
    assert message.startswith(
        f"10,000,000,000 bytes of KV cache give {full:,} full-attention blocks of 64 tokens and "
        f"{window} SWA blocks of 64; one request of 1,000,000 tokens needs 15,626 and 260 "
        f"({needed:,} bytes)"
    )
    for advice in ("--gpu-memory-utilization", "--max-model-len", "--max-num-batched-tokens"):
        assert advice in message


@pytest.mark.parametrize("budget", [0, 1, -(10**9)])
def test_no_budget_is_the_same_error(budget: int) -> None:
    with pytest.raises(PoolSizeError, match=re.escape(f"{budget:,} bytes of KV cache give 0 full")):
        demand().split(budget)


DEMANDS = st.builds(
    PoolDemand,
    full_block_size=st.sampled_from([16, 64, 128]),
    window_block_size=st.sampled_from([1, 16, 64]),
    full_block_bytes=st.integers(1, 10**6),
    window_block_bytes=st.integers(1, 10**7),
    window=st.integers(1, 300),
    max_model_len=st.integers(1, 2_000_000),
    in_flight_tokens=st.integers(1, 40_000),
    max_num_seqs=st.sampled_from([1, 256]),
    extra_window_tokens=st.integers(0, 3),
)
FRACTIONS = st.none() | st.floats(0.001, 0.95)


def enough(wanted: PoolDemand) -> int:
    """Bytes of the smallest pools that hold one request."""
    return (wanted.full_blocks_per_request + 1) * wanted.full_block_bytes + (
        wanted.window_blocks_per_request + 1
    ) * wanted.window_block_bytes


@given(DEMANDS, FRACTIONS, st.integers(0, 10**11), st.integers(0, 10**11))
@hypothesis_settings(max_examples=500, deadline=None)
def test_more_bytes_never_give_a_smaller_pool(wanted, fraction, more, still_more) -> None:
    budget = enough(wanted) + more
    try:
        small = wanted.split(budget, fraction)
    except PoolSizeError:
        assert fraction is not None, "what is enough for one request is refused"
        assume(False)
    assert small.total_bytes <= budget
    assert small.full_blocks > wanted.full_blocks_per_request
    assert small.window_blocks > wanted.window_blocks_per_request
    large = wanted.split(budget + still_more, fraction)
    assert large.window_blocks >= small.window_blocks
    # The SWA pool grows in steps of a session's blocks, or of one block; a step may come first.
    step = 1
    if fraction is None:
        step = 3 * tail_blocks(wanted.window, wanted.window_block_size) + 1
    step_bytes = step * wanted.window_block_bytes
    assert large.full_blocks >= small.full_blocks - step_bytes // wanted.full_block_bytes - 1


def test_what_is_enough_for_one_request_is_not_refused() -> None:
    """A budget between one long request and the automatic share for many short ones."""
    wanted = demand(max_model_len=1_000_000)
    split = wanted.split(enough(wanted))
    assert (split.full_blocks, split.window_blocks) == (15_626, 260)
