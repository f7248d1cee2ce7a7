"""The free queue of a block pool: which block is handed out, and so evicted, next.

A drop-in for vLLM's `FreeKVCacheBlockQueue` (`v1/core/kv_cache_utils.py`). Blocks of one free go
into one segment, a linked list through the blocks' own fields; only segments are ranked, about once
a second, so a block costs what it costs in vLLM's single list. The order is: blocks without cached
content, superseded ones, then segments by what `Policy` says they are worth. Within a segment the
caller's order holds (the end of a chain first).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Protocol

from vllm_mimo.kv.return_times import class_of
from vllm_mimo.kv.segments import NO_LABEL, SUPERSEDED, Block, Label, Segment
from vllm_mimo.kv.turns import Ending, Turn, Turns

__all__ = [
    "DEFAULT_POLICY",
    "NO_LABEL",
    "POLICIES",
    "SUPERSEDED",
    "EvictionQueue",
    "Label",
    "Policy",
    "check_policy",
]

RANK_SECONDS = 1.0
"""A ranking is good for so long, and for longer where there are more than this many segments ..."""
SEGMENTS_PER_SECOND = 1000
"""... so that ranking takes about a thousandth of the time however many sessions are cached."""

_UNLABELLED = class_of(Ending.UNKNOWN, None)


class Policy(Protocol):
    """Says what keeping a segment is worth; the smallest is evicted first, ties by age."""

    def worth(self, segment: Segment, now: float) -> float:
        """Comparable within one pool only; 0 for a segment that nobody will ask for."""


class ReturnTimePolicy:
    """Expected returns per block-second (`return_times`) times the weight of the label."""

    def __init__(self, turns: Turns) -> None:
        self._times = turns.times

    def worth(self, segment: Segment, now: float) -> float:
        label = segment.label
        turn = label.turn
        if turn is None:
            return self._times.index(_UNLABELLED, now - segment.since) * label.weight
        if turn.since is None:
            return self._times.highest(now - segment.since) * label.weight
        if segment.shared:
            # A prefix of several chains has to outlive them all, none of which went idle later.
            since = max(segment.since, turn.since)
            return self._times.highest(now - since) * label.weight
        if turn.superseded:
            return 0.0
        return self._times.index(turn.kind, now - turn.since) * label.weight


POLICIES: dict[str, Callable[[Turns], Policy] | None] = {
    "lru": None,
    "return_time": ReturnTimePolicy,
}
"""By name; None keeps all blocks in one list, in vLLM's own order."""
DEFAULT_POLICY = "return_time"


def check_policy(name: str) -> None:
    """Raise ValueError, naming the valid ones, for an unknown policy."""
    if name not in POLICIES:
        raise ValueError(f"unknown eviction policy {name!r}; valid: {', '.join(sorted(POLICIES))}")


class EvictionQueue:
    """Free blocks in eviction order; see the module. Not thread-safe, as vLLM's is not.

    Set `label` just before freeing and to `NO_LABEL` after it. `turns` is shared by the queues of
    both pools and must run on the same clock.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        turns: Turns,
        policy: str = DEFAULT_POLICY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_policy(policy)
        make = POLICIES[policy]
        self._policy = None if make is None else make(turns)
        self._clock = clock
        self.label = NO_LABEL
        self.num_free_blocks = len(blocks)
        self._unused = Segment()
        """Blocks without cached content; with "lru" all blocks."""
        self._unused.extend(blocks)
        self._superseded = Segment()
        self._segments: list[Segment] = []
        self._victims: list[Segment] = []
        """The last ranking, next victim last; segments freed since are not in it."""
        self._ranked_until = float("-inf")

    def popleft(self) -> Block:
        """The next block; ValueError where none is free."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Block]:
        """The next `n` blocks; at least as many must be free."""
        assert self.num_free_blocks >= n, f"{n} blocks asked, {self.num_free_blocks} are free"
        taken: list[Block] = []
        missing = n if self._unused.empty else self._unused.take(n, taken)
        while missing:
            missing = self._victim().take(missing, taken)
        self.num_free_blocks -= n
        return taken

    def remove(self, block: Block) -> None:
        """Take out a free block wherever it stands (a prefix hit)."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"remove() called on an invalid block: {block}")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: Block) -> None:
        """`append_n` of one block."""
        self.append_n([block])

    def append_n(self, blocks: Sequence[Block]) -> None:
        """Blocks with cached content under the current label, the first to be evicted first."""
        if not blocks:
            return
        self.num_free_blocks += len(blocks)
        label = self.label
        if self._policy is None:
            self._unused.extend(blocks)
        elif label.superseded:
            self._superseded.extend(blocks)
        else:
            split = len(blocks) if label.turn is None else _own_blocks(blocks, label.turn)
            now = self._clock()
            if split:
                self._segment(label, False, now).extend(blocks[:split])
            if split < len(blocks):
                self._segment(label, True, now).extend(blocks[split:])

    def prepend_n(self, blocks: Sequence[Block]) -> None:
        """Blocks without cached content: handed out first, the first of them before the others."""
        self._unused.extend_front(blocks)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[Block]:
        """All free blocks in eviction order as of now. Linear in the blocks: for tests."""
        self._rank()
        segments = [self._unused, self._superseded, *reversed(self._victims)]
        return [block for segment in segments for block in segment]

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Free blocks in eviction order after the cursor, or all. Linear in the blocks."""
        blocks = iter(self.get_all_free_blocks())
        if cursor is not None:
            for block in blocks:
                if block is cursor:
                    break
        return blocks

    def _segment(self, label: Label, shared: bool, now: float) -> Segment:
        """A segment for blocks freed now: the last one where it is alike and fresh, else new.

        Frees of a few blocks each (a window that moves on) would otherwise leave many segments.
        """
        if self._segments:
            last = self._segments[-1]
            alike = last.label == label and last.shared == shared
            if alike and now - last.since < RANK_SECONDS:
                return last
        segment = Segment(label, shared, now)
        self._segments.append(segment)
        return segment

    def _victim(self) -> Segment:
        """The segment that is worth least; not empty. There must be one."""
        superseded = self._superseded
        if superseded.next_free_block is superseded and self._clock() >= self._ranked_until:
            self._rank()
        while superseded.next_free_block is superseded:
            if not self._victims:
                self._rank()
            elif self._victims[-1].next_free_block is self._victims[-1]:
                self._victims.pop()
            else:
                return self._victims[-1]
        return superseded

    def _rank(self) -> None:
        """Order the segments by what they are worth now; those worth nothing lose their rank."""
        if self._policy is None:
            return
        now = self._clock()
        kept: list[tuple[float, Segment]] = []
        for segment in self._segments:
            if segment.empty:
                continue
            worth = self._policy.worth(segment, now)
            if worth > 0.0:
                kept.append((worth, segment))
            else:
                self._superseded.absorb(segment)
        self._segments = [segment for _, segment in kept]
        # Stable: of equals, those freed first end up last, that is first to be evicted.
        kept.reverse()
        kept.sort(key=itemgetter(0), reverse=True)
        self._victims = [segment for _, segment in kept]
        life = max(RANK_SECONDS, len(self._segments) / SEGMENTS_PER_SECOND)
        self._ranked_until = now + life


def _own_blocks(blocks: Sequence[Block], turn: Turn) -> int:
    """How many leading blocks (a chain from its end) lie beyond what other chains share."""
    if not turn.shared:
        return len(blocks)
    return bisect_left(blocks, -turn.shared, key=lambda block: -(block.block_hash_num_tokens or 0))
