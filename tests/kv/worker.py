"""A brute-force model of a worker's KV: what each slot holds, and whether it is exact.

Layers stand as F S F S ... S F. The KV of layer k at position p is exact iff the hidden state that
enters layer k at p is. That stays exact through an SWA layer iff the layer's KV of all `window`
positions up to p is exact, and through a full-attention layer iff the KV of all positions up to p
is. A slot with another sequence's KV, or with none, is not exact. What one computation writes to a
slot is exact in all layers up to some depth, so that one number per slot says it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.scheduling.handover import WRITE_STARTS
from vllm_mimo.worker.parts import make_parts

from .geometry import Geometry


class Violation(AssertionError):
    """An invariant that does not hold."""


def require(holds: bool, *what: object) -> None:
    if not holds:
        raise Violation(" ".join(str(part) for part in what))


class Contents:
    """Numbers for token prefixes: equal prefixes have equal numbers."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], int] = {}

    def extend(self, ids: list[int], tokens: Sequence[int]) -> None:
        """Append the numbers of the prefixes that end with each of `tokens`."""
        parent = ids[-1] if ids else 0
        for token in tokens:
            parent = self.numbers.setdefault((parent, token), len(self.numbers) + 1)
            ids.append(parent)


@dataclass
class Chunk:
    """One request's part of a step."""

    request_id: str
    first: int
    ids: np.ndarray
    """Prefix numbers of positions 0 to the chunk's end."""

    @property
    def end(self) -> int:
        return len(self.ids)


class Worker:
    """The slots of both pools and the block tables of the running requests."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.sizes = (geometry.block, geometry.window_block)
        self.depths = (geometry.layers + 1, geometry.layers)
        """Depth of a slot that is exact in all layers."""
        blocks = (geometry.full_blocks, geometry.window_blocks)
        slots = [count * size for count, size in zip(blocks, self.sizes, strict=True)]
        self.content = [np.zeros(count, np.int64) for count in slots]
        self.exact = [np.zeros(count, np.int64) for count in slots]
        self.tables: dict[str, tuple[list[int], list[int]]] = {}
        self.parts = make_parts(geometry.config())

    def slots(self, request_id: str, group: int, first: int, end: int) -> np.ndarray:
        """Slots of a request's positions, as its block table says."""
        table = np.array(self.tables[request_id][group], np.int64)
        positions = np.arange(first, end)
        size = self.sizes[group]
        return table[positions // size] * size + positions % size

    def run(self, chunks: Sequence[Chunk], write_starts: dict[str, int]) -> list[np.ndarray]:
        """Run a step.

        Returns:
            For each chunk, whether the final hidden state of each of its tokens is exact.
        """
        if not chunks:
            return []
        starts, written = self._written(chunks, write_starts)
        for i, chunk in enumerate(chunks):
            for group, slots in enumerate(written):
                own = slots[starts[i] : starts[i + 1]]
                self.content[group][own[own >= 0]] = chunk.ids[chunk.first :][own >= 0]
                self.exact[group][own[own >= 0]] = 0
        alive = [np.ones(chunk.end - chunk.first, bool) for chunk in chunks]
        for layer in range(2 * self.geometry.layers + 1):
            group = WINDOW_GROUP if layer % 2 else FULL_GROUP
            for i, chunk_alive in enumerate(alive):
                slots = written[group][starts[i] : starts[i + 1]]
                self.exact[group][slots[chunk_alive & (slots >= 0)]] = layer // 2 + 1
            for chunk, chunk_alive in zip(chunks, alive, strict=True):
                chunk_alive &= self._attend(chunk, group, layer // 2)
        return alive

    def _written(
        self, chunks: Sequence[Chunk], write_starts: dict[str, int]
    ) -> tuple[list[int], list[np.ndarray]]:
        """Where each chunk's slots begin, and the slots that the step writes in each pool."""
        starts = np.cumsum([0] + [chunk.end - chunk.first for chunk in chunks]).tolist()
        written = [
            np.concatenate([self.slots(c.request_id, group, c.first, c.end) for c in chunks])
            for group in (FULL_GROUP, WINDOW_GROUP)
        ]
        for part in self.parts:
            part.before_step(SimpleNamespace(**{WRITE_STARTS: write_starts}))
            part.slot_mappings(
                [torch.from_numpy(slots) for slots in written],
                [chunk.request_id for chunk in chunks],
                [chunk.first for chunk in chunks],
                starts,
            )
        for group, slots in enumerate(written):
            kept = slots[slots >= 0]
            require(len(np.unique(kept)) == len(kept), "two tokens of a step share a slot")
            require(bool((kept >= self.sizes[group]).all()), "a step writes to the null block")
        return starts, written

    def _attend(self, chunk: Chunk, group: int, layer: int) -> np.ndarray:
        """Which tokens of a chunk see only exact KV in one layer."""
        window = self.geometry.window if group == WINDOW_GROUP else chunk.end
        low = max(0, chunk.first - window + 1)
        slots = self.slots(chunk.request_id, group, low, chunk.end)
        wrong = self.content[group][slots] != chunk.ids[low:]
        wrong |= self.exact[group][slots] <= layer
        before = np.concatenate([[0], np.cumsum(wrong)])
        ends = np.arange(chunk.first, chunk.end) + 1 - low
        return before[ends] == before[np.maximum(ends - window, 0)]

    def holds(self, group: int, block_id: int, ids: np.ndarray) -> bool:
        """Whether a block's first slots are exact KV of these prefixes in all layers."""
        first = block_id * self.sizes[group]
        last = first + len(ids)
        return bool(
            (self.content[group][first:last] == ids).all()
            and (self.exact[group][first:last] == self.depths[group]).all()
        )
