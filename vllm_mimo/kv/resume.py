"""Where a request starts to compute, given what is cached of its prompt.

Cached full-attention KV up to P is never cut back. The SWA layers need the KV of the last
`window - 1` tokens before the start: from a tail that ends there or, without one, from a replay
that starts so far below P that everything from P on is exact (docs/kv.md, Bounded replay).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash

from vllm_mimo.kv.below import PrefixFinder, TailFinder


@dataclass(frozen=True, slots=True)
class Resume:
    """What a request takes from the cache."""

    full: list[Any]
    """Full-attention blocks from the start on; in a resume from lower tiers `HostHit`s too."""
    tail: list[Any]
    """SWA blocks that end at `start`; none in a replay."""
    start: int
    """First token to compute."""
    full_tokens: int
    """Tokens whose full-attention KV is cached: those from `start` on are recomputed for the SWA
    layers' sake, and their cached full KV is not written again."""
    is_replay: bool = False
    exact_from: int = 0
    """First recomputed token whose SWA KV is exact in all layers."""
    has_loads: bool = False
    """Whether some blocks have to be loaded from host memory."""

    @property
    def recomputed(self) -> int:
        """Tokens below the full hit that are computed again."""
        return self.full_tokens - self.start


@dataclass(frozen=True, slots=True)
class ResumeRule:
    """The switches and bounds of the choice."""

    replay_bound: int
    """Tokens after which a replay is exact: (window - 1) for each SWA layer."""
    window: int
    replay: bool = True
    drop_tokens: int = 0
    """With MTP, tokens before the full hit that are computed again for the drafter's sake."""

    def choose(
        self, full: PrefixFinder, window: TailFinder, hashes: Sequence[BlockHash], most: int
    ) -> Resume:
        """The resume that computes the fewest tokens, of a prompt with these block hashes.

        Args:
            most: tokens that may be taken from the cache (one less than the request has).
        """
        blocks = full.find_prefix(full.block_hashes(hashes), most // full.block_size)
        hit = len(blocks) * full.block_size
        target = max(0, hit - self.drop_tokens)
        size = window.block_size
        # A tail is whole blocks: the replay has to make those exact, not only the window in them.
        bound = self.replay_bound + -(self.window - 1) % size
        replay_start = max(0, target - bound) // size * size if self.replay else 0
        lowest = max(0, replay_start // size - 1)
        tail = window.find_tail(window.block_hashes(hashes), target // size, lowest)
        if tail is not None:
            start, found = tail[0] * size, tail[1]
        else:
            start, found = replay_start, []
        if not self.replay and start < hit:  # vLLM's rule: the hit ends where the tail does
            keep = -(-start // full.block_size)
            blocks, hit = blocks[:keep], keep * full.block_size
        is_replay = tail is None and start > 0
        exact_from = start + self.replay_bound - (self.window - 1) if is_replay else start
        return Resume(blocks, found, start, hit, is_replay, exact_from)
