"""Reader of Azure's LLM inference traces (2023): a CSV of times and lengths without block ids."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from vllm_mimo.traces.form import Trace, TraceError, TraceRequest
from vllm_mimo.traces.lines import read_lines

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path) -> Trace:
    """Read the file; raises TraceError. Its requests can drive load, but no prefix cache."""
    lines = read_lines(path)
    header = next(lines, (0, ""))[1]
    if tuple(next(csv.reader([header]), ())) != COLUMNS:
        raise TraceError(f"{path}:1: the header {','.join(COLUMNS)} is expected, found {header!r}")
    rows = [_row(path, line, text) for line, text in lines]
    start = min((when for when, _, _ in rows), default=0.0)
    requests = (
        TraceRequest(when - start, "", prompt, out, 0) for when, prompt, out in sorted(rows)
    )
    return Trace(path, "azure2023", "timestamps", tuple(requests))


def _row(path: Path, line: int, text: str) -> tuple[float, int, int]:
    try:
        when, prompt, output = next(csv.reader([text]))
        # Seven digits of a second; Python reads six.
        seconds = datetime.fromisoformat(when[:26]).timestamp()
        counts = int(prompt), int(output)
    except ValueError as error:
        raise TraceError(
            f"{path}:{line}: {text!r} is not {','.join(COLUMNS)} ({error}); repair or delete the "
            "line"
        ) from error
    if min(counts) < 0:
        raise TraceError(f"{path}:{line}: negative tokens in {text!r}; repair or delete the line")
    return seconds, *counts
