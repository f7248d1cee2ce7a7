"""Block hashes: which blocks of two requests are the same at another block size."""

from __future__ import annotations

import pytest

from vllm_mimo.replay.hashes import check_block_sizes, sequence_hashes
from vllm_mimo.traces.form import TraceError, TraceRequest


def request(tokens: int, output: int, size: int, prompt: tuple, told: tuple = ()) -> TraceRequest:
    return TraceRequest(0.0, "", tokens, output, size, prompt, told)


def common(one: list, other: list) -> int:
    """Leading elements that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_same_size_with_a_known_output() -> None:
    one = sequence_hashes(request(130, 100, 64, ((1, 2),), ((3, 1),)), 0, 64)
    two = sequence_hashes(request(330, 1, 64, ((1, 5),)), 1, 64)
    assert (len(one), len(two), common(one, two)) == (3, 5, 3)


def test_unknown_outputs_are_like_no_other() -> None:
    one = sequence_hashes(request(130, 100, 64, ((1, 2),)), 0, 64)
    two = sequence_hashes(request(130, 100, 64, ((1, 2),)), 1, 64)
    assert (len(one), common(one, two)) == (3, 2)


def test_larger_trace_blocks_are_divided() -> None:
    one = sequence_hashes(request(600, 0, 512, ((7, 2),)), 0, 64)
    two = sequence_hashes(request(1024, 0, 512, ((7, 1), (40, 1))), 1, 64)
    assert (len(one), len(two), common(one, two)) == (9, 16, 8)
    assert len(set(two)) == 16


def test_a_partial_last_block_tells_nothing_beyond_the_prompt() -> None:
    one = sequence_hashes(request(600, 424, 512, ((7, 2),)), 0, 64)
    two = sequence_hashes(request(600, 424, 512, ((7, 2),)), 1, 64)
    assert (len(one), common(one, two)) == (16, 9)


def test_smaller_trace_blocks_are_joined() -> None:
    one = sequence_hashes(request(320, 0, 64, ((1, 5),)), 0, 128)
    two = sequence_hashes(request(256, 0, 64, ((1, 3), (9, 1))), 1, 128)
    assert (len(one), len(two), common(one, two)) == (2, 2, 1)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(TraceError, match="one must be a multiple"):
        check_block_sizes(64, 48)
    check_block_sizes(512, 64)
    check_block_sizes(64, 128)
