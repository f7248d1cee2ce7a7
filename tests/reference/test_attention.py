"""The two forms of attention agree with each other, with their gradients, and with the window."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mimo.reference.attention import attend_blocked, attend_dense


def tensors(tokens: int, seed: int, kv_heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, 4, tokens, 16), (1, kv_heads, tokens, 16), (1, kv_heads, tokens, 12))
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.integers(1, 70),
    window=st.sampled_from((None, 1, 8, 32)),
    with_sink=st.booleans(),
    kv_heads=st.sampled_from((1, 2, 4)),
)
def test_blocked_equals_dense(tokens: int, window: int | None, with_sink: bool, kv_heads: int):
    q, k, v = tensors(tokens, tokens, kv_heads)
    sink = torch.linspace(-1, 2, 4).requires_grad_() if with_sink else None
    inputs = [q, k, v, *([sink] if sink is not None else [])]
    weight = torch.randn(1, 4, tokens, 12, generator=torch.Generator().manual_seed(1))
    results = []
    for attend in (attend_dense, attend_blocked):
        out = attend(q, k, v, window, sink)
        results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attend", (attend_dense, attend_blocked))
def test_a_window_of_eight_sees_seven_tokens_back_and_no_further(attend):
    q, k, v = (x.detach() for x in tensors(40, 0))
    before = attend(q, k, v, 8, None)
    v[:, :, 20] += 1
    changed = (attend(q, k, v, 8, None) != before).any(-1).all(1)[0].nonzero().flatten()
    assert changed.tolist() == list(range(20, 28))


def test_a_sink_takes_weight_and_gives_no_value():
    q, k, v = (x.detach() for x in tensors(5, 0))
    far_below = attend_dense(q, k, v, None, torch.full((4,), -1e4))
    torch.testing.assert_close(far_below, attend_dense(q, k, v, None, None))
    assert attend_dense(q, k, v, None, torch.full((4,), 1e4)).abs().max() < 1e-6
