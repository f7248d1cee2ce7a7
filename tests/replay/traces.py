"""Tiny traces for the tests of this folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def turn(t: float, blocks: list[list[int]], tokens: int, output: int = 1, **more: Any) -> dict:
    """One request of a weka session: `blocks` are runs of ids."""
    fields = {"a": "main", "t": t, "in": tokens, "out": output, "h": blocks, "api": 1.0}
    return fields | {"think": 0.0, "stop": "tool_use"} | more


def session(*turns: dict, block_size: int = 64) -> dict:
    return {"id": "s", "block_size": block_size, "requests": list(turns)}


def write_lines(path: Path, *values: Any) -> Path:
    """JSON lines, gzipped where the name says so."""
    data = "".join(json.dumps(value) + "\n" for value in values).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def mooncake(timestamp: float, tokens: int, output: int, ids: list[int]) -> dict:
    return {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": output,
        "hash_ids": ids,
    }
