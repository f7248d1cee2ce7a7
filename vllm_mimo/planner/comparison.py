"""Requests by context length in both planners, and the ratio of their bytes per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_mimo.planner.inputs import MixPart, format_tokens
from vllm_mimo.planner.pools import TwoPools
from vllm_mimo.planner.serving import buckets
from vllm_mimo.planner.upstream import How, VllmPool

TARGET = 0.87
"""Bytes of a running request against vLLM's that the two pools are to reach."""

CHARGES: tuple[How, How] = ("settled", "reserved")


def rows(
    pools: TwoPools, upstream: VllmPool | None, mix: Sequence[MixPart]
) -> list[dict[str, Any]]:
    """A row for each bucket, each length of the mix and the mix as a whole.

    Requests and tokens are of one attention replica, bytes of one of its ranks.
    """
    found = [
        _row("bucket", label, (MixPart(tokens, 1.0),), pools, upstream)
        for label, tokens in buckets(pools.serving.max_model_len)
    ]
    found += [
        _row("length", format_tokens(part.tokens), (MixPart(part.tokens, 1.0),), pools, upstream)
        for part in mix
    ]
    return [*found, _row("mix", "mix", tuple(mix), pools, upstream)]


def ratio(pools: TwoPools, upstream: VllmPool) -> dict[str, Any]:
    """Ours against vLLM's bytes: SWA alone, and lengths where a whole request meets TARGET."""
    swa = [group for group in upstream.groups if group.kind == "SWA"]
    padded = sum(upstream.bytes_per_block / group.block_size for group in swa)
    exact = pools.window_block_bytes / pools.serving.block_size
    meeting: dict[How, list[int]] = {how: [] for how in CHARGES}
    step = 1024
    for tokens in range(step, pools.serving.max_model_len + 1, step):
        ours = pools.charge(tokens).total_bytes
        for how in CHARGES:
            if ours <= TARGET * sum(upstream.request_bytes(tokens, how)):
                meeting[how].append(tokens)
    return {
        "target": TARGET,
        "window": exact / padded,
        "vllm_window_padding": padded / exact - 1,
        **{
            f"{how}_meets_target": [lengths[0], lengths[-1]] if lengths else None
            for how, lengths in meeting.items()
        },
    }


def curve(
    pools: TwoPools, upstream: VllmPool | None, points: int = 64
) -> list[tuple[int, int, int | None, int | None]]:
    """(tokens, ours, vLLM settled, vLLM reserved) concurrent requests, from 1K tokens up."""
    low, high = min(1024, pools.serving.max_model_len), pools.serving.max_model_len
    lengths = sorted({int(low * (high / low) ** (i / (points - 1))) for i in range(points)})
    found = []
    for tokens in lengths:
        mix = (MixPart(tokens, 1.0),)
        theirs = [upstream.concurrent(mix, how) if upstream else None for how in CHARGES]
        found.append((tokens, pools.concurrent(mix)[0], theirs[0], theirs[1]))
    return found


def _row(
    kind: str,
    label: str,
    mix: tuple[MixPart, ...],
    pools: TwoPools,
    upstream: VllmPool | None,
) -> dict[str, Any]:
    tokens = sum(part.share * part.tokens for part in mix)
    concurrent, binding = pools.concurrent(mix)
    charge = pools.mean_charge(mix)
    row: dict[str, Any] = {
        "kind": kind,
        "label": label,
        "tokens_per_request": tokens,
        "pools": {
            "concurrent": concurrent,
            "tokens": int(concurrent * tokens),
            "binding": binding,
            "full_bytes": charge.full_bytes,
            "window_bytes": charge.window_bytes,
        },
        "vllm": None,
        "bytes_ratio": None,
    }
    if upstream is not None:
        row["vllm"], row["bytes_ratio"] = {}, {}
        for how in CHARGES:
            parts = [(p.share, upstream.request_bytes(p.tokens, how)) for p in mix]
            full = sum(share * sizes[0] for share, sizes in parts)
            window = sum(share * sizes[1] for share, sizes in parts)
            requests = upstream.concurrent(mix, how)
            row["vllm"][how] = {
                "concurrent": requests,
                "tokens": int(requests * tokens),
                "full_bytes": full,
                "window_bytes": window,
            }
            row["bytes_ratio"][how] = charge.total_bytes / (full + window)
    return row
