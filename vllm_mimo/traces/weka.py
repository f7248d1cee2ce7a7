"""Reader of weka_agentic traces: one JSON line per session of a coding agent and its sub-agents.

Block ids are local to a session and run-length coded. Outputs have no ids of their own; a later
prompt of the same session that starts with this prompt and is long enough to hold the output tells
them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from vllm_mimo.traces.form import BlockRuns, Trace, TraceRequest, count_blocks
from vllm_mimo.traces.lines import Record, read_lines

SESSION_BITS = 24
"""Low bits of a block id that tell blocks of one session apart; the session's number is above."""


def read_weka(path: Path) -> Trace:
    """Read the file; raises TraceError."""
    requests: list[TraceRequest] = []
    for number, (line, text) in enumerate(read_lines(path), 1):
        requests += _session(Record.parse(path, line, text), number)
    return Trace(path, "weka_agentic", "sessions", tuple(requests))


def _session(record: Record, number: int) -> list[TraceRequest]:
    block_size = record.tokens("block_size", 1)
    name = str(record.fields.get("id", number))
    read = []
    for index, fields in enumerate(record.items("requests"), 1):
        where = f"request {index}: "
        if not isinstance(fields, dict):
            record.fail(f"{where}an object is expected, found {fields!r}")
        one = Record(fields, record.path, record.line, where)
        prompt, output = one.tokens("in", 1), one.tokens("out")
        stop = one.fields.get("stop")
        read.append(
            TraceRequest(
                arrival_s=one.seconds("t"),
                session=f"{number}:{name}",
                input_tokens=prompt,
                output_tokens=output,
                block_size=block_size,
                prompt_blocks=_runs(one, number << SESSION_BITS, prompt // block_size),
                duration_s=one.seconds("api") if fields.get("api") is not None else None,
                think_s=one.seconds("think") if fields.get("think") is not None else None,
                ended_in_tool_call=stop == "tool_use" if stop else None,
                agent=str(one.fields.get("a", "")),
            )
        )
    read.sort(key=lambda request: request.arrival_s)
    return _with_outputs(read)


def _runs(record: Record, base: int, blocks: int) -> BlockRuns:
    runs = []
    for run in record.items("h"):
        if not (
            isinstance(run, list)
            and len(run) == 2
            and all(type(x) is int for x in run)
            and 0 <= run[0] < 1 << SESSION_BITS
            and run[1] > 0
        ):
            record.fail(f"'h' holds {run!r}, pairs [first id, count] are expected")
        runs.append((base + run[0], run[1]))
    found = count_blocks(tuple(runs))
    if found != blocks:
        record.fail(f"'h' lists {found} blocks, a prompt of 'in' tokens has {blocks} whole ones")
    return tuple(runs)


def _with_outputs(requests: list[TraceRequest]) -> list[TraceRequest]:
    """The session's requests with the output blocks that their successors tell.

    Ids are prefix-chained: who has the prompt's last id at that place has the whole prompt.
    """
    return [_with_output(request, requests[i + 1 :]) for i, request in enumerate(requests)]


def _with_output(request: TraceRequest, later: list[TraceRequest]) -> TraceRequest:
    size = request.block_size
    start, total = request.input_tokens // size, request.input_tokens + request.output_tokens
    end = total // size
    if start == end or not request.prompt_blocks:
        return request
    last = request.prompt_blocks[-1]
    for successor in later:
        ids = slice_runs(successor.prompt_blocks, start - 1, start)
        if ids != ((sum(last) - 1, 1),):
            continue
        if successor.input_tokens < total:  # the output did not go back as it was
            return request
        runs = slice_runs(successor.prompt_blocks, start, end)
        return replace(request, output_blocks=runs)
    return request


def slice_runs(runs: BlockRuns, start: int, end: int) -> BlockRuns:
    """Blocks `start` to `end` (exclusive) of `runs`; fewer where `runs` ends before."""
    edges = [0]
    for _, count in runs:
        edges.append(edges[-1] + count)
    cut = []
    for (first, _), (low, high) in zip(runs, pairwise(edges), strict=True):
        low_cut, high_cut = max(low, start), min(high, end)
        if low_cut < high_cut:
            cut.append((first + low_cut - low, high_cut - low_cut))
    return tuple(cut)
