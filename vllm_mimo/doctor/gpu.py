"""NVIDIA GPUs and the CUDA compiler. Neither is needed on a CPU, so their absence is a remark."""

from __future__ import annotations

import re
import shutil
import subprocess

from vllm_mimo.doctor.report import Finding, Status

SECTION = "gpu"
_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def gpu_findings() -> list[Finding]:
    """The GPUs that the driver reports, and the version of ``nvcc``."""
    return [_gpus(), _nvcc()]


def _gpus() -> Finding:
    output = _run("nvidia-smi", *_QUERY)
    gpus = [line.strip() for line in (output or "").splitlines() if line.strip()]
    if gpus:
        return Finding(SECTION, "NVIDIA GPUs", Status.OK, gpus)
    reason = "nvidia-smi is not installed" if output is None else "nvidia-smi reports none"
    advice = "vLLM's CPU build needs none; with GPUs, install the driver and 'vllm-mimo[cuda]'."
    return Finding(SECTION, "NVIDIA GPUs", Status.INFO, reason, advice)


def _nvcc() -> Finding:
    release = re.search(r"release ([\d.]+)", _run("nvcc", "--version") or "")
    if release:
        return Finding(SECTION, "nvcc", Status.OK, release[1])
    advice = "Needed only to build CUDA code; it comes with the CUDA toolkit."
    return Finding(SECTION, "nvcc", Status.INFO, None, advice)


def _run(program: str, *arguments: str) -> str | None:
    """What a program prints; None without the program, empty when it fails."""
    if shutil.which(program) is None:
        return None
    try:
        result = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout
