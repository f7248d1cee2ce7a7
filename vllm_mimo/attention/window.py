"""Attention within a window over many short sequences, for the towers, in torch operations.

Blocks of queries see the keys of their own block and its neighbourhood only, so that memory and
arithmetic grow with the window instead of the sequence. Runs on any device and in any dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.nn.functional as F

_SMALLEST_BLOCK = 64
_BLOCKS_AT_ONCE = 64
"""Query blocks of one sequence that are attended together; bounds the size of the scores."""


def window_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: Sequence[int],
    left: int,
    right: int,
    scale: float,
    first_key_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend to the keys from `left` before to `right` after each query, in its own sequence.

    Args:
        q: (tokens, heads, head_dim), the sequences one after the other.
        k, v: (tokens, kv_heads, head_dim).
        lengths: tokens of each sequence, adding up to all of them.
        left, right: window on either side, the query's own position not counted.
        scale: factor of the scores.
        first_key_bias: (heads,), added to the score of each sequence's key 0 where it is in the
            window; None for none.

    Returns:
        (tokens, heads, head_dim)
    """
    outputs = []
    start = 0
    for length, run in groupby(lengths):
        count = len(list(run))
        end = start + count * length
        queries, keys, values = (
            x[start:end].unflatten(0, (count, length)).transpose(1, 2) for x in (q, k, v)
        )  # (sequences, heads, length, head_dim)
        out = _attend(queries, keys, values, left, right, scale, first_key_bias)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(outputs) if outputs else q


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    left: int,
    right: int,
    scale: float,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """q (sequences, heads, length, dim), k and v with KV heads -> the shape of q."""
    heads, length = q.shape[1], q.shape[2]
    left, right = min(left, length), min(right, length)
    block = min(max(left, right, _SMALLEST_BLOCK), length)
    blocks = -(-length // block)
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    q = F.pad(q, (0, 0, 0, blocks * block - length)).unflatten(2, (blocks, block))
    k, v = (
        F.pad(x, (0, 0, left, blocks * block - length + right))
        .unfold(2, left + block + right, block)
        .transpose(-1, -2)
        for x in (k, v)
    )  # (sequences, heads, blocks, keys of a block, dim)
    outputs = []
    for first in range(0, blocks, _BLOCKS_AT_ONCE):
        part = slice(first, min(first + _BLOCKS_AT_ONCE, blocks))
        mask = _mask(part, block, length, left, right, q, bias)
        outputs.append(
            F.scaled_dot_product_attention(
                q[:, :, part], k[:, :, part], v[:, :, part], attn_mask=mask, scale=scale
            )
        )
    return torch.cat(outputs, dim=2).flatten(2, 3)[:, :, :length]


def _mask(
    part: slice,
    block: int,
    length: int,
    left: int,
    right: int,
    like: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """What is added to the scores: (1 or heads, blocks, queries, keys) of the blocks in `part`."""
    device = like.device
    origin = torch.arange(part.start, part.stop, device=device)[:, None, None] * block
    query = origin + torch.arange(block, device=device)[:, None]
    key = origin - left + torch.arange(left + block + right, device=device)
    seen = (key >= query - left) & (key <= query + right) & (key >= 0) & (key < length)
    seen |= query >= length  # padding: keep its softmax finite
    mask = torch.zeros(seen.shape, dtype=like.dtype, device=device)
    mask = mask.masked_fill(~seen, float("-inf"))[None]
    if bias is not None and part.start * block <= left:
        first = (key == 0).expand_as(seen)[None]
        mask = mask + first * bias.to(like.dtype)[:, None, None, None]
    return mask
