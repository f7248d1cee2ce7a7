"""Drops the prefix cache when a worker's weights change (docs/patches.md).

Weights are changed by remote calls to the workers, of which vLLM's scheduler learns nothing: cached
KV of the old weights would be used with the new ones.
"""

from __future__ import annotations

from typing import Any

from vllm_mimo.hooks.wrapping import wrap_once

METHODS = frozenset({"update_weights", "reload_weights", "finish_weight_update"})
"""Worker methods that change weights."""

ENGINE_METHODS = ("set_weight_version",)
"""Methods of the engine core itself that announce new weights."""


def install() -> None:
    """Wrap the engine core's remote calls once."""
    from vllm.v1.engine.core import EngineCore

    wrap_once(EngineCore, "collective_rpc", _remote)
    for name in ENGINE_METHODS:
        if hasattr(EngineCore, name):
            wrap_once(EngineCore, name, _announced)


def _remote(original: Any) -> Any:
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        name = method if isinstance(method, str) else getattr(method, "__name__", "")
        try:
            return original(self, method, *args, **kwargs)
        finally:  # a call that failed may have changed some of them
            if name in METHODS:
                _tell(self)

    return collective_rpc


def _announced(original: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            _tell(self)

    return method


def _tell(core: Any) -> None:
    changed = getattr(core.scheduler, "weights_changed", None)
    if changed is not None:
        changed()
