"""Block hashes for the managers, made of a trace's block ids at another block size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from vllm_mimo.traces.form import BlockRuns, TraceError, TraceRequest

UNKNOWN_BASE = 1 << 62
"""Ids from here on stand for blocks whose contents the trace does not tell; none repeats."""

UNKNOWN_BITS = 20
"""Low bits of such an id: the block's place in its sequence. The request's number is above."""


def check_block_sizes(trace_block: int, hash_block: int) -> None:
    """Raise TraceError unless one block size divides the other."""
    if trace_block % hash_block and hash_block % trace_block:
        raise TraceError(
            f"blocks of {hash_block} tokens do not fit the trace's blocks of {trace_block}: one "
            "must be a multiple of the other; choose another --block-size"
        )


def sequence_hashes(request: TraceRequest, number: int, hash_block: int) -> list[Any]:
    """Hashes (8 bytes each) of all whole blocks of `hash_block` tokens of prompt and output.

    Blocks beyond what the trace tells get hashes that no other request (by `number`) has.
    """
    size = request.block_size
    total = (request.input_tokens + request.output_tokens) // hash_block
    ids = _expand(request.prompt_blocks + request.output_blocks)
    # Without output ids the trace's last block may be partial: it tells no more than the prompt.
    told = len(ids) * size if request.output_blocks else min(len(ids) * size, request.input_tokens)
    known = min(told // hash_block, total)
    if size > hash_block:
        parts = size // hash_block
        ids = (ids[:, None] * parts + np.arange(parts)).ravel()
    elif size < hash_block:  # ids are prefix-chained: the last one of a larger block names it
        ids = ids[hash_block // size - 1 :: hash_block // size]
    first = UNKNOWN_BASE + (number << UNKNOWN_BITS)
    unknown = np.arange(first + known, first + total, dtype=np.int64)
    data = np.concatenate([ids[:known], unknown]).astype(">i8").tobytes()
    return [data[i : i + 8] for i in range(0, len(data), 8)]


def reusable_tokens(requests: Iterable[TraceRequest], hash_block: int) -> int:
    """Prompt tokens that earlier requests computed: the hits of a cache without a limit.

    As if each request ended before the next one starts.
    """
    seen: set[Any] = set()
    tokens = 0
    for number, request in enumerate(requests):
        hashes = sequence_hashes(request, number, hash_block)
        most = (request.input_tokens - 1) // hash_block
        found = next((i for i in range(most) if hashes[i] not in seen), most)
        tokens += found * hash_block
        computed = request.input_tokens + max(0, request.output_tokens - 1)
        seen.update(hashes[found : computed // hash_block])
    return tokens


def _expand(runs: BlockRuns) -> Any:
    arrays = [np.arange(first, first + count, dtype=np.int64) for first, count in runs]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
