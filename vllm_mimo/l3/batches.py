"""How a batch of blocks becomes calls of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from vllm_mimo.l3.engine import Buffers

Verb = Literal["get", "put", "exists", "touch", "delete"]


class Part(NamedTuple):
    """One key of an engine: a value, or a slice of one."""

    block: int
    """Which block of the batch it belongs to."""
    key: bytes
    bufs: Buffers
    size: int
    """Bytes of the buffers."""
    total: int
    """Bytes of the whole value."""


def flat(bufs: Buffers, writable: bool) -> Buffers:
    """Buffers as views of bytes; ValueError for ones that are strided, or read-only for a get."""
    views = []
    for view in bufs:
        if writable and view.readonly:
            raise ValueError("a buffer to read into is read-only")
        if not view.c_contiguous:
            raise ValueError("a buffer must be contiguous")
        if view.nbytes:
            views.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
    return views


def slices(bufs: Buffers, step: int) -> list[list[memoryview]]:
    """A value cut after every `step` bytes, across buffers; one empty slice for an empty value."""
    found: list[list[memoryview]] = [[]]
    room = step
    for buf in bufs:
        start = 0
        while start < buf.nbytes:
            if room == 0:
                found.append([])
                room = step
            end = min(buf.nbytes, start + room)
            found[-1].append(buf[start:end])
            room -= end - start
            start = end
    return found


def batches(parts: Sequence[Part], most: int) -> Iterator[list[Part]]:
    """Parts in groups of at most `most` bytes, a single larger one alone."""
    group: list[Part] = []
    size = 0
    for part in parts:
        if group and size + part.size > most:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size
    if group:
        yield group


def whole_blocks(parts: Sequence[Part], most: int) -> Iterator[list[Part]]:
    """As `batches`, with all slices of a block in one group."""
    group: list[Part] = []
    size = 0
    for number, part in enumerate(parts):
        if number == 0 or parts[number - 1].block != part.block:
            if group and size + part.total > most:
                yield group
                group, size = [], 0
            size += part.total
        group.append(part)
    if group:
        yield group
