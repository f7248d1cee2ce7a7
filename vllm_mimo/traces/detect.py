"""Which format a path has, and its reader."""

from __future__ import annotations

import json
from pathlib import Path

from vllm_mimo.traces.azure import COLUMNS, read_azure
from vllm_mimo.traces.form import Trace, TraceError
from vllm_mimo.traces.lines import Record, read_lines
from vllm_mimo.traces.mooncake import read_mooncake
from vllm_mimo.traces.weka import read_weka

KNOWN = (
    "weka_agentic (JSON lines with 'requests' and 'block_size', .gz or not), "
    "mooncake (JSON lines with 'hash_ids'), "
    f"azure2023 (CSV with the header {','.join(COLUMNS)}), "
    "servegen (a folder of chunk-*-trace.csv and chunk-*-dataset.json)"
)


def read_trace(path: Path) -> Trace:
    """Read a trace in whichever known format it is.

    Raises TraceError naming file, line and remedy; also for ServeGen's folders, which hold rates
    and distributions instead of requests.
    """
    if path.is_dir():
        raise TraceError(_about_folder(path))
    first = next(read_lines(path), None)
    if first is None:
        raise TraceError(f"{path}: empty; known formats: {KNOWN}")
    line, text = first
    if text.lstrip("\ufeff").startswith(COLUMNS[0]):
        return read_azure(path)
    if not text.lstrip().startswith("{"):
        raise TraceError(f"{path}:{line}: no known trace format; known: {KNOWN}")
    fields = Record.parse(path, line, text).fields
    if "hash_ids" in fields or "input_length" in fields:
        return read_mooncake(path)
    if "requests" in fields or "block_size" in fields:
        return read_weka(path)
    raise TraceError(
        f"{path}:{line}: no known trace format in the fields "
        f"{json.dumps(list(fields))}; known: {KNOWN}"
    )


def _about_folder(path: Path) -> str:
    if any(path.glob("chunk-*-trace.csv")):
        return (
            f"{path}: a ServeGen folder holds request rates and length distributions, but no "
            "requests and no block hashes, so it cannot drive a prefix cache; use a weka_agentic "
            "or mooncake trace"
        )
    return f"{path}: a folder, but not ServeGen's; known formats: {KNOWN}"
