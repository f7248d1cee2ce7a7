"""Windowed attention over many sequences equals dense attention with a mask, one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mimo.attention import window
from vllm_mimo.attention.window import window_attention

LENGTHS = [[1], [3, 3, 3], [64], [65], [200], [1, 64, 64, 65, 200, 7, 1, 1, 130]]
WINDOWS = [(64, 64), (128, 0), (5, 5)]


def inputs(
    tokens: int, heads: int, kv_heads: int, width: int = 16, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v, and a bias that is large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(tokens, count, width, generator=generator)
        for count in (heads, kv_heads, kv_heads)
    )
    return q, k, v, 2 * torch.randn(heads, generator=generator)


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: list[int],
    left: int,
    right: int,
    scale: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The definition: every score of a sequence, in float64."""
    outputs = []
    group = q.shape[1] // k.shape[1]
    for queries, keys, values in zip(*(x.double().split(lengths) for x in (q, k, v)), strict=True):
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        if bias is not None:
            scores[:, :, 0] += bias.double()[:, None]
        place = torch.arange(len(queries))
        distance = place[None, :] - place[:, None]  # of a key (column) from a query (row)
        scores.masked_fill_((distance < -left) | (distance > right), float("-inf"))
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    return torch.cat(outputs)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("left", "right"), WINDOWS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_equals_dense_attention(lengths: list[int], left: int, right: int, biased: bool) -> None:
    q, k, v, bias = inputs(sum(lengths), 4, 2)
    given_bias = bias if biased else None
    got = window_attention(q, k, v, lengths, left, right, 0.25, given_bias)
    assert got.shape == q.shape
    assert not got.isnan().any()
    expected = dense(q, k, v, lengths, left, right, 0.25, given_bias)
    assert (got - expected).abs().max() <= 1e-5


def test_the_bias_changes_queries_that_see_key_0_and_no_others() -> None:
    q, k, v, bias = inputs(200, 2, 2)
    without = window_attention(q, k, v, [200], 64, 64, 0.25)
    change = (window_attention(q, k, v, [200], 64, 64, 0.25, bias) - without).abs().amax((1, 2))
    assert (change[:65] > 1e-6).all()
    assert (change[65:] == 0).all()


def test_a_sequence_longer_than_the_blocks_that_are_attended_together() -> None:
    length = window._BLOCKS_AT_ONCE * window._SMALLEST_BLOCK + 100
    q, k, v, bias = inputs(length, 1, 1, width=4)
    got = window_attention(q, k, v, [length], 5, 5, 0.5, bias)
    expected = dense(q, k, v, [length], 5, 5, 0.5, bias)
    assert (got - expected).abs().max() <= 1e-5


def test_bfloat16_stays_bfloat16() -> None:
    q, k, v, bias = (x.bfloat16() for x in inputs(130, 4, 2))
    got = window_attention(q, k, v, [130], 64, 64, 0.25, bias)
    assert got.dtype == torch.bfloat16
    expected = dense(q, k, v, [130], 64, 64, 0.25, bias)
    assert (got - expected).abs().max() <= 0.03


def test_nothing_to_attend() -> None:
    q, k, v, _ = inputs(0, 4, 2)
    assert window_attention(q, k, v, [], 64, 64, 0.25).shape == (0, 4, 16)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 180), min_size=1, max_size=4),
    left=st.integers(0, 150),
    right=st.integers(0, 150),
    kv_heads=st.sampled_from([1, 2]),
    biased=st.booleans(),
    seed=st.integers(0, 3),
)
def test_any_lengths_and_windows(
    lengths: list[int], left: int, right: int, kv_heads: int, biased: bool, seed: int
) -> None:
    q, k, v, bias = inputs(sum(lengths), 2, kv_heads, width=8, seed=seed)
    given_bias = bias if biased else None
    got = window_attention(q, k, v, lengths, left, right, 0.3, given_bias)
    assert not got.isnan().any()
    expected = dense(q, k, v, lengths, left, right, 0.3, given_bias)
    assert (got - expected).abs().max() <= 1e-5
