"""Where the tests find things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "vllm_mimo" / "assets" / "configs"


def real_config(name: str) -> dict[str, Any]:
    """config.json of a real checkpoint, as bundled for the planner and the tests."""
    return json.loads((CONFIGS / f"{name}.json").read_text())
