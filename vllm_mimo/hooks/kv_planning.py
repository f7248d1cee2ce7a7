"""Makes vLLM plan two pools for MiMo checkpoints (docs/patches.md).

vLLM 0.32 has no hook for planning. Two functions are wrapped where the engine core calls them; for
every other model the originals run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_mimo.config import from_vllm_config
from vllm_mimo.hooks.wrapping import wrap_once
from vllm_mimo.kv.spec import TwoPoolConfig


def install() -> None:
    """Wrap both functions once."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine import core

    wrap_once(core, "get_kv_cache_configs", _configs)
    wrap_once(kv_cache_utils, "get_max_concurrency_for_kv_cache_config", _concurrency)


def _configs(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_kv_cache_configs(
        vllm_config: Any, kv_cache_specs: Any, available_memory: Any, *rest: Any, **more: Any
    ) -> Any:
        from vllm_mimo.kv.planning import two_pool_configs

        if not uses_two_pools(vllm_config):
            return original(vllm_config, kv_cache_specs, available_memory, *rest, **more)
        return two_pool_configs(vllm_config, kv_cache_specs, available_memory)

    return get_kv_cache_configs


def uses_two_pools(vllm_config: Any) -> bool:
    """Whether `choose_kv` has set this engine up for two pools."""
    from vllm_mimo.hooks.kv_defaults import is_our_scheduler

    scheduler = vllm_config.scheduler_config
    if scheduler.disable_hybrid_kv_cache_manager or not is_our_scheduler(scheduler.scheduler_cls):
        return False
    config = from_vllm_config(vllm_config)
    return config.enabled and config.two_pools  # a user may name our scheduler all the same


def _concurrency(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_max_concurrency_for_kv_cache_config(vllm_config: Any, kv_cache_config: Any) -> Any:
        if isinstance(kv_cache_config, TwoPoolConfig):
            from vllm_mimo.kv.planning import concurrency

            return concurrency(vllm_config, kv_cache_config)
        return original(vllm_config, kv_cache_config)

    return get_max_concurrency_for_kv_cache_config
