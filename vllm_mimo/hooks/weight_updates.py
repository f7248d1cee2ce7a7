"""Drops the prefix cache when a worker's weights change (docs/patches.md).

Weights are changed by remote calls to the workers, of which vLLM's scheduler learns nothing: cached
KV of the old weights would be used with the new ones.
"""

from __future__ import annotations

import functools
from typing import Any

METHODS = frozenset({"update_weights", "reload_weights", "finish_weight_update"})
"""Worker methods that change weights."""

ENGINE_METHODS = ("set_weight_version",)
"""Methods of the engine core itself that announce new weights."""

_MARK = "_vllm_mimo"


def install() -> None:
    """Wrap the engine core's remote calls once."""
    from vllm.v1.engine.core import EngineCore

    original = EngineCore.collective_rpc
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        name = method if isinstance(method, str) else getattr(method, "__name__", "")
        try:
            return original(self, method, *args, **kwargs)
        finally:  # a call that failed may have changed some of them
            if name in METHODS:
                _tell(self)

    setattr(collective_rpc, _MARK, True)
    EngineCore.collective_rpc = collective_rpc
    for name in ENGINE_METHODS:
        if hasattr(EngineCore, name):
            setattr(EngineCore, name, _announced(getattr(EngineCore, name)))


def _announced(original: Any) -> Any:
    @functools.wraps(original)
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
