"""Causal attention with a sliding window and sinks, in two forms that agree.

`attend_dense` is the definition, one line per idea: use it as an oracle. `attend_blocked` gives the
same numbers without building a T x T matrix for windowed layers: use it to train.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attend_dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int | None,
    sink: torch.Tensor | None,
) -> torch.Tensor:
    """Attention by its definition.

    Args:
        q: (batch, heads, tokens, head_dim).
        k: (batch, kv_heads, tokens, head_dim).
        v: (batch, kv_heads, tokens, v_head_dim).
        window: keys a query sees, itself included; None for all earlier ones.
        sink: (heads,) logits that join the softmax's denominator and carry no value, or None.

    Returns:
        (batch, heads, tokens, v_head_dim).
    """
    heads, tokens = q.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    position = torch.arange(tokens, device=q.device)
    distance = position[:, None] - position[None, :]
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    scores = scores.masked_fill(~visible, float("-inf"))
    return _softmax_with_sink(scores, sink, (1, heads, 1, 1)) @ v


def attend_blocked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int | None,
    sink: torch.Tensor | None,
) -> torch.Tensor:
    """As `attend_dense`; windowed layers look at blocks of `window` queries and 2 x `window` keys.

    Full attention without sinks goes to torch's fused kernel, with V padded to K's width.
    """
    batch, heads, tokens, head_dim = q.shape
    if window is None:
        if sink is not None:
            return attend_dense(q, k, v, window, sink)
        v_dim = v.shape[-1]
        v = F.pad(v, (0, head_dim - v_dim))
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., :v_dim]
    blocks = -(-tokens // window)
    pad = blocks * window - tokens
    q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    group = heads // k.shape[1]
    # (batch, kv_heads, group, blocks, window, dim) against (batch, kv_heads, 1, blocks, 2w, dim)
    q = q.view(batch, k.shape[1], group, blocks, window, head_dim)

    def with_previous(x: torch.Tensor) -> torch.Tensor:
        x = x.view(batch, x.shape[1], blocks, window, x.shape[-1])
        previous = F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        return torch.cat([previous, x], dim=3)[:, :, None]

    scores = (q @ with_previous(k).transpose(-1, -2)) * head_dim**-0.5
    row = torch.arange(window, device=q.device)
    distance = row[:, None] + window - torch.arange(2 * window, device=q.device)[None, :]
    visible = (distance >= 0) & (distance < window)
    first = visible & (torch.arange(2 * window, device=q.device) >= window)
    mask = visible.expand(blocks, -1, -1).clone()
    mask[0] = first
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = _softmax_with_sink(scores, sink, (1, k.shape[1], group, 1, 1, 1))
    out = weights @ with_previous(v)
    return out.reshape(batch, heads, blocks * window, v.shape[-1])[:, :, :tokens]


def _softmax_with_sink(
    scores: torch.Tensor, sink: torch.Tensor | None, shape: tuple[int, ...]
) -> torch.Tensor:
    if sink is None:
        return scores.softmax(dim=-1)
    column = sink.to(scores.dtype).view(shape).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
