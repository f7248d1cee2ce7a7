"""Figures of the tiers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mimo.replay.report import PolicyResult

SOURCES = (("device", "device_tokens"), ("host", "host_tokens"), ("L3", "l3_tokens"))
"""Where reused tokens came from: a deeper tier gets what it adds to the ones above."""

BYTES = (
    ("host GB in", "loaded_bytes"),
    ("out", "stored_bytes"),
    ("L3 GB read", "l3_read_bytes"),
    ("written", "l3_written_bytes"),
)
BLOCKS = (
    ("host evicted full", "host_full_evicted"),
    ("SWA", "host_swa_evicted"),
    ("L3 evicted", "l3_evicted"),
    ("backfilled", "backfilled_blocks"),
    ("rescued", "rescued_blocks"),
    ("no room", "dropped_blocks"),
)


def tier_rows(results: Sequence[PolicyResult]) -> list[list[str]]:
    """A heading and one row for each result with tiers."""
    heads = [f"from {name}" for name, _ in SOURCES]
    rows = [["tiers", "budget", *heads, *(h for h, _ in BYTES), *(h for h, _ in BLOCKS)]]
    for r in results:
        if r.tiers is None:
            continue
        tokens = [f"{r.tiers.get(key, 0) / max(1, r.prompt_tokens):.1%}" for _, key in SOURCES]
        moved = [f"{r.tiers.get(key, 0) / 1e9:,.0f}" for _, key in BYTES]
        blocks = [f"{r.tiers.get(key, 0):,}" for _, key in BLOCKS]
        rows.append([r.policy, f"{r.budget_bytes / 1e9:g} GB", *tokens, *moved, *blocks])
    return rows
