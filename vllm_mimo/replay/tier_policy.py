"""The plugin's two pools with host memory and L3 below them, in one engine or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_mimo.kv.planning import block_bytes
from vllm_mimo.replay.deployment import Deployment
from vllm_mimo.replay.mimo_policy import MimoPolicy
from vllm_mimo.replay.policy import CacheDriver, Clock
from vllm_mimo.replay.tier_driver import TierDriver
from vllm_mimo.replay.tier_fleet import Fleet
from vllm_mimo.replay.tier_options import TierOptions
from vllm_mimo.replay.tier_store import RemoteIndex
from vllm_mimo.tiers.director import TierDirector, TierPolicy

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TieredPolicy:
    """`MimoPolicy` with lower tiers."""

    name: str
    deployment: Deployment
    options: Mapping[str, Any]
    """Keys of the plugin's config."""
    tiers: TierOptions

    def build(self, budget: int, clock: Clock) -> CacheDriver:
        size = int(self.tiers.l3_gb * 10**9)
        options = {"host_gib": self.tiers.host_gb * 10**9 / GIB} | dict(self.options)
        pools = MimoPolicy(self.name, self.deployment, options)
        plan, _ = pools.plan(budget)
        full, window = (block_bytes(group) for group in plan.kv_cache_groups)
        remote = RemoteIndex(size, (full, window)) if size else None
        engines = [
            self._engine(pools, budget, clock, (full, window), remote)
            for _ in range(self.tiers.engines)
        ]
        return Fleet(engines, self.tiers.route, remote)

    def _engine(
        self,
        pools: MimoPolicy,
        budget: int,
        clock: Clock,
        sizes: tuple[int, int],
        remote: RemoteIndex | None,
    ) -> CacheDriver:
        base = pools.build(budget, clock)
        if not self.tiers.host_gb:
            return base
        plan, chosen = pools.plan(budget)
        director = TierDirector(
            base.manager,
            (plan.host_full_blocks, plan.host_window_blocks),
            TierPolicy(ahead=False, backfill=chosen.tier_backfill),
        )
        return TierDriver(base, director, sizes, remote, self.tiers)
