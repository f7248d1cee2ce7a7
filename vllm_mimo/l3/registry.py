"""Engines by name, imported when one is asked for: an engine's library may be absent."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from vllm_mimo.l3.engine import EngineUnavailable, KVEngine

if TYPE_CHECKING:
    from vllm_mimo.l3.settings import L3Settings

EngineMaker = Callable[["L3Settings", str], KVEngine]
"""Makes the engine of one cell, given the settings and the cell's name; EngineUnavailable."""

ENGINES: dict[str, str] = {"lmdb": "vllm_mimo.l3.lmdb_engine:LmdbEngine"}
"""``module:attribute`` by name. `L3Settings.engine` may also say ``module:attribute`` itself."""


def load_engine(name: str) -> EngineMaker:
    """The maker of an engine; EngineUnavailable if it or its library cannot be imported."""
    module, _, attribute = ENGINES.get(name, name).partition(":")
    try:
        return cast(EngineMaker, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineUnavailable(f"engine {name!r} cannot be imported: {error}") from error
