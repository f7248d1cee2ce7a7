"""Versions of what is installed, and whether the installed vLLM is one that the plugin can use."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

import vllm_mimo
from vllm_mimo import compat
from vllm_mimo.contract import ENTRIES, check_installed
from vllm_mimo.doctor.report import Finding, Status

SECTION = "software"


def software_findings() -> list[Finding]:
    """Python, vLLM, its contract and platform, torch, transformers, the plugin's own version."""
    return [
        Finding(SECTION, "python", Status.OK, platform.python_version()),
        Finding(SECTION, "vllm-mimo", Status.OK, vllm_mimo.__version__),
        *_vllm(),
        *(_distribution(name) for name in ("torch", "transformers")),
        _native(),
    ]


def _native() -> Finding:
    """Whether copies between tiers are compiled."""
    from vllm_mimo.native import library

    if library.available():
        return Finding(SECTION, "native library", Status.OK, library.describe())
    return Finding(
        SECTION,
        "native library",
        Status.WARN,
        library.describe(),
        "torch copies KV between tiers in its place, more slowly",
    )


def _vllm() -> Iterator[Finding]:
    try:
        version = compat.vllm_version()
    except compat.UnsupportedVllmError as error:
        yield Finding(SECTION, "vllm", Status.MISSING, None, str(error))
        return
    found = compat.installed_distributions()
    names = " and ".join(f"{name} {found[name]}" for name in found) or "unknown"
    value = {"version": version, "distribution": names}
    try:
        compat.check_vllm_version()
    except compat.UnsupportedVllmError as error:
        yield Finding(SECTION, "vllm", Status.MISSING, value, str(error))
        return
    yield Finding(SECTION, "vllm", Status.OK, value)
    if "vllm" not in found:
        yield Finding(
            SECTION,
            "vllm serve",
            Status.WARN,
            "no distribution called vllm",
            "`vllm serve` looks one up and stops; `python -m vllm.entrypoints.openai.api_server` "
            "takes the same flags and works.",
        )
    yield _platform()
    yield _contract()


def _platform() -> Finding:
    """What vLLM takes this machine for."""
    try:
        from vllm.platforms import current_platform

        device = current_platform.device_type
    except Exception as error:  # a broken install fails in many ways, all worth showing
        return Finding(
            SECTION, "platform", Status.MISSING, None, f"{type(error).__name__}: {error}"
        )
    if device:
        return Finding(SECTION, "platform", Status.OK, device)
    return Finding(
        SECTION,
        "platform",
        Status.MISSING,
        "none",
        "This build of vLLM finds no device it can run on. Without a GPU it takes the CPU build: "
        "pip install 'vllm-mimo[cpu]'.",
    )


def _contract() -> Finding:
    """Whether everything of vLLM that the plugin uses is where it expects it."""
    problems = check_installed()
    if not problems:
        return Finding(SECTION, "contract", Status.OK, f"{len(ENTRIES)} uses of vLLM hold")
    return Finding(
        SECTION,
        "contract",
        Status.MISSING,
        problems,
        f"This build of vLLM lacks what the plugin needs; install {compat.SUPPORTED_RANGE}.",
    )


def _distribution(name: str) -> Finding:
    try:
        return Finding(SECTION, name, Status.OK, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            SECTION, name, Status.MISSING, None, f"vLLM brings {name}: reinstall vLLM with pip."
        )
