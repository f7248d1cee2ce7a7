"""Makes vLLM plan two pools for MiMo checkpoints (docs/patches.md).

vLLM 0.32 has no hook for planning. Two functions are wrapped where the engine core calls them; for
every other model the originals run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vllm_mimo.kv.spec import TwoPoolConfig

_MARK = "_vllm_mimo"


def install() -> None:
    """Wrap both functions once."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine import core

    _wrap(core, "get_kv_cache_configs", _configs)
    _wrap(kv_cache_utils, "get_max_concurrency_for_kv_cache_config", _concurrency)


def _wrap(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(module, name)
    if getattr(original, _MARK, False):
        return
    wrapper = functools.wraps(original)(make(original))
    setattr(wrapper, _MARK, True)
    setattr(module, name, wrapper)


def _configs(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_kv_cache_configs(
        vllm_config: Any, kv_cache_specs: Any, available_memory: Any, *rest: Any, **more: Any
    ) -> Any:
        from vllm_mimo.hooks.kv_defaults import SCHEDULER
        from vllm_mimo.kv.planning import two_pool_configs

        if not uses_two_pools(vllm_config, SCHEDULER):
            return original(vllm_config, kv_cache_specs, available_memory, *rest, **more)
        return two_pool_configs(vllm_config, kv_cache_specs, available_memory)

    return get_kv_cache_configs


def uses_two_pools(vllm_config: Any, scheduler: str) -> bool:
    """Whether `choose_kv` has set this engine up for two pools."""
    chosen = vllm_config.scheduler_config.scheduler_cls
    if chosen is None or vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
        return False
    from vllm.utils.import_utils import resolve_obj_by_qualname

    kind = resolve_obj_by_qualname(chosen) if isinstance(chosen, str) else chosen
    return isinstance(kind, type) and issubclass(kind, resolve_obj_by_qualname(scheduler))


def _concurrency(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_max_concurrency_for_kv_cache_config(vllm_config: Any, kv_cache_config: Any) -> Any:
        if isinstance(kv_cache_config, TwoPoolConfig):
            from vllm_mimo.kv.planning import concurrency

            return concurrency(vllm_config, kv_cache_config)
        return original(vllm_config, kv_cache_config)

    return get_max_concurrency_for_kv_cache_config
