"""Blocks of a free queue that were freed together, and what the caller says they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_mimo.kv.turns import Turn

Block = Any
"""vLLM's `KVCacheBlock`: `prev_free_block`, `next_free_block` and `block_hash_num_tokens`."""


@dataclass(frozen=True, slots=True)
class Label:
    """What the blocks are that are being freed. The default says nothing: an unknown ending."""

    turn: Turn | None = None
    """The turn whose blocks they are; one that has not ended (preempted) is kept like the best."""
    superseded: bool = False
    """Nobody will ask for them again, e.g. the tail that a later turn's tail replaced."""
    weight: float = 1.0
    """Worth relative to others in this pool at equal odds: for a tail, the tokens replayed without
    it (at most the replay bound) for each of its blocks; in the full pool all weigh 1."""


SUPERSEDED = Label(superseded=True)
NO_LABEL = Label()


class Segment:
    """Blocks freed together: a circular list with the segment itself as its sentinel."""

    __slots__ = ("label", "next_free_block", "prev_free_block", "shared", "since")

    block_id = -1
    """A block shows its neighbours' ids when it is printed."""

    def __init__(self, label: Label = NO_LABEL, shared: bool = False, since: float = 0.0) -> None:
        self.prev_free_block: Block = self
        self.next_free_block: Block = self
        self.label = label
        self.shared = shared
        """Whether other chains branch from these blocks."""
        self.since = since
        """Clock of the free, in seconds."""

    @property
    def empty(self) -> bool:
        """Whether no block is left in it."""
        return self.next_free_block is self

    def __iter__(self) -> Iterator[Block]:
        block = self.next_free_block
        while block is not self:
            yield block
            block = block.next_free_block

    def extend(self, blocks: Sequence[Block]) -> None:
        """Link `blocks` in behind the others."""
        last = self.prev_free_block
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = self
        self.prev_free_block = last

    def extend_front(self, blocks: Sequence[Block]) -> None:
        """Link `blocks` in before the others, the first of them in front."""
        following = self.next_free_block
        last: Block = self
        for block in blocks:
            block.prev_free_block = last
            last.next_free_block = block
            last = block
        last.next_free_block = following
        following.prev_free_block = last

    def absorb(self, other: Segment) -> None:
        """Link all blocks of another, non-empty segment in behind the others; it is empty then."""
        first, last, own_last = other.next_free_block, other.prev_free_block, self.prev_free_block
        own_last.next_free_block, first.prev_free_block = first, own_last
        last.next_free_block, self.prev_free_block = self, last
        other.next_free_block = other.prev_free_block = other

    def take(self, count: int, taken: list[Block]) -> int:
        """Move up to `count` blocks from the front to `taken`; how many are still missing."""
        block = self.next_free_block
        held = len(taken)
        for _ in range(count):
            if block is self:
                break
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        self.next_free_block = block
        block.prev_free_block = self
        return count - (len(taken) - held)
