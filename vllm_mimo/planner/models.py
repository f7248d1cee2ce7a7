"""Which model is planned: a folder with a config.json, or a real one whose config is bundled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.schema import is_described
from vllm_mimo.planner.inputs import PlanError

ORGANISATION = "XiaomiMiMo"
"""Owner of the real checkpoints on the hub."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A config and what was read from it."""

    name: str
    config: dict[str, Any]
    geometry: TextGeometry
    folder: Path | None
    """The checkpoint's folder; None for a bundled config."""

    @property
    def max_position(self) -> int | None:
        """Longest context that the config allows, in tokens, where it says so."""
        value = self.config.get("max_position_embeddings")
        return None if value is None else int(value)


def bundled_names() -> tuple[str, ...]:
    """Short names of the bundled configs."""
    folder = files("vllm_mimo").joinpath("assets/configs")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def find_model(name: str) -> PlannedModel:
    """The model called `name`: a folder, a hub name or the hub name's last part.

    Raises PlanError for an unknown name, an unreadable config or unknown quantisation.
    """
    folder = Path(name)
    if folder.is_dir() or folder.name == "config.json":
        folder = folder if folder.is_dir() else folder.parent
        return _read(name, (folder / "config.json"), folder)
    short = name.removeprefix(f"{ORGANISATION}/")
    known = {bundled.lower(): bundled for bundled in bundled_names()}
    if short.lower() not in known:
        raise PlanError(
            f"--model '{name}' is neither a folder with a config.json nor one of the bundled "
            f"configs: {', '.join(f'{ORGANISATION}/{bundled}' for bundled in known.values())}"
        )
    bundled = known[short.lower()]
    path = files("vllm_mimo").joinpath(f"assets/configs/{bundled}.json")
    return _read(f"{ORGANISATION}/{bundled}", path, None)


def _read(name: str, path: Any, folder: Path | None) -> PlannedModel:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"--model '{name}': its config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise PlanError(f"--model '{name}': its config.json is not a JSON object")
    if not is_described(config):
        raise PlanError(
            f"--model '{name}': only bf16 and block-FP8 checkpoints are known, "
            "its quantization_config is another"
        )
    try:
        geometry = TextGeometry.from_config(config)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise PlanError(f"--model '{name}': {error}") from None
    if len(set(geometry.layer_is_swa)) != 2:
        raise PlanError(
            f"--model '{name}': the planner needs full-attention and sliding-window layers, "
            "the config has one kind only"
        )
    return PlannedModel(name, config, geometry, folder)
