"""The compiled library of operations, loaded once in a process that needs it."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

import torch

logger = logging.getLogger("vllm.vllm_mimo")

LIBRARY = Path(__file__).with_name("_C.so")

ENV_VAR = "VLLM_MIMO_NATIVE"
"""0 leaves the library alone: torch does its work."""


@functools.cache
def why_not() -> str | None:
    """Why the library is not used, None where it is. The first call loads it, or logs why not."""
    if os.environ.get(ENV_VAR) == "0":
        return f"{ENV_VAR} is 0"
    reason = _load()
    if reason is not None:
        logger.warning("the native library is not used, torch copies KV more slowly: %s", reason)
    return reason


def _load() -> str | None:
    if not LIBRARY.exists():
        return "it was not built (python setup.py build_ext --inplace)"
    try:
        torch.ops.load_library(str(LIBRARY))
        torch.ops.vllm_mimo.copy_blocks  # noqa: B018  raises where it is of another version
    except (OSError, RuntimeError, AttributeError) as error:
        return str(error.__cause__ or error)  # torch puts the linker's reason there
    return None


def available() -> bool:
    """Whether operations of the library can be called."""
    return why_not() is None


@functools.cache
def has_cuda() -> bool:
    """Whether it was built with the CUDA operations."""
    return available() and bool(torch.ops.vllm_mimo.has_cuda())


def describe() -> str:
    """The library in a few words, for people."""
    reason = why_not()
    if reason is not None:
        return f"not used: {reason}"
    return "CPU and CUDA operations" if has_cuda() else "CPU operations"
