"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEXT_VLLM = "0.33.0"
"""The supported release that has no CPU build, so that only its sources can be checked here."""


@pytest.fixture(scope="session")
def next_vllm_sources() -> Path:
    """Folder with the sources of NEXT_VLLM, downloaded once into ``.cache``."""
    dest = ROOT / ".cache" / f"vllm-{NEXT_VLLM}"
    if os.environ.get("VLLM_MIMO_OFFLINE") == "1" and not dest.exists():
        pytest.skip("VLLM_MIMO_OFFLINE=1, and the sources are not in .cache")
    script = ROOT / "tools" / "fetch_vllm_sources.py"
    result = subprocess.run(
        [sys.executable, str(script), NEXT_VLLM, str(dest)], capture_output=True, text=True
    )
    if result.returncode != 0:
        pytest.fail(
            f"the sources of vLLM {NEXT_VLLM} could not be downloaded; without a network, set "
            f"VLLM_MIMO_OFFLINE=1 to skip what needs them.\n{result.stderr}"
        )
    return dest
