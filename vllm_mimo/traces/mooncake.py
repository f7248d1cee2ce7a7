"""Reader of Mooncake traces (FAST'25): one JSON line per request, prefix-chained ids of 512 tokens.

The trace has no sessions and tells nothing about what an output became.
"""

from __future__ import annotations

from pathlib import Path

from vllm_mimo.traces.form import Trace, TraceRequest, runs_of
from vllm_mimo.traces.lines import Record, read_lines

BLOCK_SIZE = 512


def read_mooncake(path: Path) -> Trace:
    """Read the file; raises TraceError."""
    requests = [_request(Record.parse(path, line, text)) for line, text in read_lines(path)]
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(path, "mooncake", "timestamps", tuple(requests))


def _request(record: Record) -> TraceRequest:
    prompt = record.tokens("input_length", 1)
    ids = record.items("hash_ids")
    if not all(type(block) is int and block >= 0 for block in ids):
        record.fail("'hash_ids' must hold whole numbers of 0 or more")
    blocks = -(-prompt // BLOCK_SIZE)
    if len(ids) != blocks:
        record.fail(
            f"'hash_ids' lists {len(ids)} blocks of {BLOCK_SIZE} tokens, "
            f"'input_length' {prompt} makes {blocks}"
        )
    return TraceRequest(
        arrival_s=record.seconds("timestamp") / 1000,
        session="",
        input_tokens=prompt,
        output_tokens=record.tokens("output_length"),
        block_size=BLOCK_SIZE,
        prompt_blocks=runs_of(ids),
    )
