"""A consistent-hash ring: which node a label belongs to, the same in every process.

Each node stands at `POINTS` places of a circle of 64-bit numbers (xxHash64 of its name and the
place's number); a label belongs to the node whose place follows the label's own hash. Adding or
removing a node therefore moves only the labels that the node gains or loses (Karger et al., 1997).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import xxhash

POINTS = 160
"""Places of a node: shares of a handful of nodes then differ by about a tenth."""


class HashRing:
    """Nodes by label. Not locked: build a new ring, or change one that a single thread uses."""

    def __init__(self, nodes: Iterable[str] = (), points: int = POINTS) -> None:
        if points < 1:
            raise ValueError(f"a node needs at least one point on the ring, got {points}")
        self._points = points
        self._nodes: set[str] = set()
        self._places: list[tuple[int, str]] = []  # sorted; equal hashes are ordered by name
        self._hashes: list[int] = []
        for node in nodes:
            self._insert(node)
        self._sort()

    @property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes on the ring."""
        return frozenset(self._nodes)

    def add(self, node: str) -> None:
        """Put a node on the ring; every label that moves, moves to it. Known nodes stay."""
        self._insert(node)
        self._sort()

    def remove(self, node: str) -> None:
        """Take a node off; only its labels move. Unknown nodes are no error."""
        self._nodes.discard(node)
        self._places = [place for place in self._places if place[1] != node]
        self._sort()

    def lookup(self, label: str) -> str:
        """The node of a label; LookupError on an empty ring."""
        if not self._places:
            raise LookupError("no node on the ring")
        found = bisect_right(self._hashes, _place(label))
        return self._places[found % len(self._places)][1]

    def _insert(self, node: str) -> None:
        if node not in self._nodes:
            self._nodes.add(node)
            self._places += [(_place(f"{node}#{number}"), node) for number in range(self._points)]

    def _sort(self) -> None:
        self._places.sort()
        self._hashes = [value for value, _ in self._places]


def _place(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode())
