"""Results as JSON values and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_mimo.replay.engine import Replay
from vllm_mimo.replay.measure import LONGEST_BUCKET, LOOKUP_BUCKETS
from vllm_mimo.replay.tier_report import tier_rows


@dataclass(frozen=True, slots=True)
class LookupCost:
    """What looking up prompts of one range of lengths took, in microseconds."""

    bucket: str
    count: int
    mean_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy at one budget. Tokens are of prompts."""

    policy: str
    budget_bytes: int
    requests: int
    prompt_tokens: int
    hit_rate: float
    """Share of prompt tokens whose full-attention KV was reused."""
    recomputed_fraction: float
    """Share of prompt tokens that were computed, replayed ones included."""
    evictions: dict[str, int]
    capacity_blocks: dict[str, int]
    peak_used_blocks: dict[str, int]
    """Most blocks that running requests held."""
    peak_running: int
    waited: int
    """Requests that did not fit when they arrived."""
    mean_wait_s: float
    """Their mean waiting time in virtual seconds."""
    preemptions: int
    preempted_tokens: int
    refused: int
    """Requests larger than the idle cache, in no other figure."""
    lookups: list[LookupCost]
    miss_reasons: dict[str, int] | None
    tiers: dict[str, int] | None
    """What tiers below the pools did; None without them."""
    plan: dict[str, Any]
    wall_s: float
    """Real seconds."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def result_of(replay: Replay) -> PolicyResult:
    """The result of a replay that is over."""
    measured, driver = replay.measured, replay.driver
    reasons, tiers = driver.miss_reasons(), driver.tier_figures()
    return PolicyResult(
        policy=replay.policy.name,
        budget_bytes=replay.budget,
        requests=measured.requests,
        prompt_tokens=measured.prompt_tokens,
        hit_rate=measured.hit_rate,
        recomputed_fraction=measured.recomputed_fraction,
        evictions=dict(driver.evictions()),
        capacity_blocks=dict(driver.capacity),
        peak_used_blocks=dict(measured.peak_used),
        peak_running=measured.peak_running,
        waited=measured.waited,
        mean_wait_s=measured.wait_seconds / max(1, measured.waited),
        preemptions=measured.preemptions,
        preempted_tokens=measured.preempted_tokens,
        refused=measured.refused,
        lookups=_costs(measured.lookups),
        miss_reasons=None if reasons is None else dict(reasons),
        tiers=None if tiers is None else dict(tiers),
        plan=dict(driver.facts),
        wall_s=measured.wall_seconds,
    )


def _costs(lookups: dict[str, list[int]]) -> list[LookupCost]:
    costs = []
    for bucket in [*(name for _, name in LOOKUP_BUCKETS), LONGEST_BUCKET]:
        times = sorted(lookups.get(bucket, ()))
        if times:
            p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
            mean = sum(times) / len(times)
            costs.append(LookupCost(bucket, len(times), mean / 1e3, p99 / 1e3))
    return costs


def format_table(results: Sequence[PolicyResult]) -> str:
    """For a person: one row for each result, then lookups and miss reasons."""
    head = ["policy", "budget", "hit", "recomputed", "evicted full", "evicted SWA"]
    head += ["peak blocks used", "waited", "preempted", "refused", "wall"]
    rows = [head]
    for r in results:
        peaks = (f"{name} {used:,}/{r.capacity_blocks[name]:,}" for name, used in _items(r))
        rows.append(
            [
                r.policy,
                f"{r.budget_bytes / 1e9:g} GB",
                f"{r.hit_rate:.1%}",
                f"{r.recomputed_fraction:.1%}",
                f"{r.evictions.get('full', 0):,}",
                f"{r.evictions.get('swa', 0):,}",
                " ".join(peaks),
                f"{r.waited:,} x {r.mean_wait_s:.0f} s" if r.waited else "0",
                f"{r.preemptions:,}",
                f"{r.refused:,}",
                f"{r.wall_s:.0f} s",
            ]
        )
    parts = [_aligned(rows), _aligned(_lookup_rows(results))]
    if any(r.tiers for r in results):
        parts.append(_aligned(tier_rows(results)))
    reasons = [
        [r.policy, f"{r.budget_bytes / 1e9:g} GB", f"{name} {count:,}"]
        for r in results
        for name, count in (r.miss_reasons or {}).items()
    ]
    if reasons:
        parts.append(_aligned([["policy", "budget", "miss reason"], *reasons]))
    return "\n\n".join(parts)


def _items(result: PolicyResult) -> list[tuple[str, int]]:
    return list(result.peak_used_blocks.items())


def _lookup_rows(results: Sequence[PolicyResult]) -> list[list[str]]:
    buckets = [*(name for _, name in LOOKUP_BUCKETS), LONGEST_BUCKET]
    used = [b for b in buckets if any(b == cost.bucket for r in results for cost in r.lookups)]
    rows = [["lookup mean/p99 us", "budget", *used]]
    for r in results:
        cells = {cost.bucket: f"{cost.mean_us:,.0f}/{cost.p99_us:,.0f}" for cost in r.lookups}
        row = [r.policy, f"{r.budget_bytes / 1e9:g} GB"]
        rows.append(row + [cells.get(bucket, "-") for bucket in used])
    return rows


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
