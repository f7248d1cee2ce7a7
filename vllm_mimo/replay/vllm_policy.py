"""vLLM's own planning and manager, at a retention interval of the user's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import KVCacheConfig, SlidingWindowSpec

from vllm_mimo.compat import KV_PLANNING_MODULES, import_first
from vllm_mimo.replay.deployment import Deployment
from vllm_mimo.replay.driver import EvictionCounter, ManagerDriver
from vllm_mimo.replay.policy import Clock, PolicyError


@dataclass(frozen=True, slots=True)
class VllmPolicy:
    """One pool for all layers, planned by vLLM's functions."""

    name: str
    deployment: Deployment
    retention: int | None
    """`prefix_cache_retention_interval` in tokens; None is dense."""

    def build(self, budget: int, clock: Clock) -> ManagerDriver:
        config = self.deployment.vllm_config(self.retention, {})
        planning = import_first(KV_PLANNING_MODULES)
        groups = planning.get_kv_cache_groups(config, self.deployment.kv_specs())
        plan = planning.get_kv_cache_config_from_groups(config, groups, budget)
        if plan.num_blocks < 2:
            raise PolicyError(
                f"{self.name}: {budget:,} bytes of KV cache hold {plan.num_blocks} of vLLM's "
                "blocks; give more --budget"
            )
        scheduler_block, hash_block = resolve_kv_cache_block_sizes(plan, config)
        counter = EvictionCounter()
        try:
            manager = KVCacheManager(
                plan,
                max_model_len=self.deployment.max_model_len,
                scheduler_block_size=scheduler_block,
                hash_block_size=hash_block,
                max_in_flight_tokens=self.deployment.max_in_flight_tokens,
                metrics_collector=counter,
            )
        except ValueError as error:  # a retention that is no multiple of the block size
            raise PolicyError(f"{self.name}: {error}") from error
        return ManagerDriver(manager, hash_block, kinds_of(plan), counter, facts_of(plan))


def kinds_of(plan: KVCacheConfig) -> tuple[str, ...]:
    """`full` or `swa` for each group."""
    return tuple(
        "swa" if isinstance(group.kv_cache_spec, SlidingWindowSpec) else "full"
        for group in plan.kv_cache_groups
    )


def facts_of(plan: KVCacheConfig) -> dict[str, Any]:
    """What the plan decided, for the report."""
    return {
        "blocks": plan.num_blocks,
        "groups": [
            {
                "kind": kind,
                "layers": len(group.layer_names),
                "block_size": group.kv_cache_spec.block_size,
            }
            for kind, group in zip(kinds_of(plan), plan.kv_cache_groups, strict=True)
        ],
    }
