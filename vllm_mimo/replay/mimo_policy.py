"""The plugin's two pools under the replay engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from vllm_mimo.config import SECTION, MimoConfig, MimoConfigError, from_sources
from vllm_mimo.kv.cache_policy import CachePolicy
from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.planning import two_pool_configs
from vllm_mimo.kv.sizing import PoolSizeError
from vllm_mimo.kv.spec import TwoPoolConfig
from vllm_mimo.replay.deployment import Deployment
from vllm_mimo.replay.driver import EvictionCounter, ManagerDriver
from vllm_mimo.replay.policy import Clock, Lookup, PolicyError
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.replay.vllm_policy import facts_of, kinds_of


class MimoDriver(ManagerDriver):
    """A `CacheDriver` over `MimoKVCacheManager`, which replays tokens and has two pools."""

    def lookup(self, request: ReplayRequest) -> Lookup:
        found = super().lookup(request)
        cached = max(found.resume, self.manager.write_start(request.request_id))
        return dataclasses.replace(found, cached=cached)

    def finish(self, request: ReplayRequest, ended_in_tool_call: bool | None) -> None:
        self.manager.mark_finished(request, ended_in_tool_call)
        super().finish(request, ended_in_tool_call)

    def evictions(self) -> Mapping[str, int]:
        pools = {"full": self.manager.full, "swa": self.manager.window}
        return {name: pool.block_pool.num_evicted for name, pool in pools.items()}

    def miss_reasons(self) -> Mapping[str, int] | None:
        return dict(self.manager.misses.counts)

    def _free_blocks(self) -> dict[str, int]:
        pools = {"full": self.manager.full, "swa": self.manager.window}
        return {name: pool.block_pool.get_num_free_blocks() for name, pool in pools.items()}


@dataclass(frozen=True, slots=True)
class MimoPolicy:
    """Two pools, planned and managed by the plugin."""

    name: str
    deployment: Deployment
    options: Mapping[str, Any]
    """Keys of the plugin's config, as in docs/configuration.md."""

    def build(self, budget: int, clock: Clock) -> MimoDriver:
        plan, chosen = self.plan(budget)
        config = self.deployment.vllm_config(0, {})
        scheduler_block, hash_block = resolve_kv_cache_block_sizes(plan, config)
        manager = MimoKVCacheManager(
            plan,
            policy=CachePolicy.from_config(chosen),
            clock=clock,
            max_model_len=self.deployment.max_model_len,
            scheduler_block_size=scheduler_block,
            hash_block_size=hash_block,
            max_in_flight_tokens=self.deployment.max_in_flight_tokens,
        )
        facts = facts_of(plan) | {"swa_blocks": plan.window_blocks}
        return MimoDriver(manager, hash_block, kinds_of(plan), EvictionCounter(), facts)

    def plan(self, budget: int) -> tuple[TwoPoolConfig, MimoConfig]:
        """How the pools are laid out, and the config that says so; raises PolicyError."""
        additional = {SECTION: dict(self.options)}
        config = self.deployment.vllm_config(0, additional)
        try:
            chosen = from_sources(additional)
            plan = two_pool_configs(config, [self.deployment.kv_specs()], [budget])[0]
        except (MimoConfigError, PoolSizeError) as error:
            raise PolicyError(f"{self.name}: {error}") from error
        return plan, chosen
