"""Wraps a function of vLLM in its place, once however often it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_vllm_mimo"


def wrap_once(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of a module's function or a class's method.

    The wrapper keeps the original's name and signature, which the contract reads.
    """
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return
    wrapper = functools.wraps(original)(make(original))
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
