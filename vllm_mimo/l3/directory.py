"""Who says which cells there are, and which of them keeps a label's values.

A cell is one engine to the client: a folder, or a whole cluster. Labels are grouped into sets, and
sets are spread over cells by consistent hashing: a cell that fails takes few sets with it, and one
that joins takes over its share and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import xxhash

from vllm_mimo.l3.keys import Label
from vllm_mimo.ring import HashRing


@dataclass(frozen=True)
class Topology:
    """Sets and cells at one moment; `epoch` grows with each change."""

    epoch: int
    sets: int
    cells: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.sets < 1:
            raise ValueError(f"'sets' must be 1 or more, got {self.sets}")
        if len(set(self.cells)) != len(self.cells):
            raise ValueError(f"a cell is named twice: {self.cells}")


class Directory(Protocol):
    """Source of topologies. Losing it freezes what is known; it never empties it."""

    def current(self) -> Topology:
        """The latest topology known."""

    def watch(self, callback: Callable[[Topology], None]) -> None:
        """Call back, from any thread, with each later topology."""


class StaticDirectory:
    """Cells that never change: one folder on one machine, unless told otherwise."""

    def __init__(self, cells: tuple[str, ...] = ("local",), sets: int = 256) -> None:
        self._topology = Topology(epoch=0, sets=sets, cells=cells)

    def current(self) -> Topology:
        """Always the same one."""
        return self._topology

    def watch(self, callback: Callable[[Topology], None]) -> None:
        """There will be no change to tell of."""


class Placement:
    """Where a topology keeps labels."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._ring = HashRing(topology.cells)

    def cell(self, label: Label) -> str:
        """The cell of a label; LookupError if there is none."""
        number = xxhash.xxh64_intdigest(label.place) % self.topology.sets
        return self._ring.lookup(f"set {number}")
