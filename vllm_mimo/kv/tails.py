"""Which SWA blocks are worth keeping: the tails at positions where a later request may resume.

A tail is the blocks with the last `window - 1` tokens before a position. Kept are: the end of the
prompt, the end of the output (`WindowManager.keep_end`), junctions, and positions at a fixed
interval near the start, where a replay would be the whole prefix anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TailRule:
    """How tails are laid out in one SWA pool."""

    block_size: int
    blocks: int
    """Blocks of one tail."""
    interval: int = 0
    """Tokens between the tails near the start; 0 for none."""
    dense_until: int = 0
    """Tokens up to which `interval` applies."""


@dataclass(slots=True)
class TailPlan:
    """The positions of one request at which tails are kept, and what of its SWA KV is exact."""

    rule: TailRule
    positions: set[int] = field(default_factory=set)
    """Block counts: a tail ends before block `position`."""
    exact_from: int = 0
    """First token whose SWA KV is exact; after a replay the ones before are not."""

    def add(self, tokens: int) -> None:
        """Keep the tail of the last whole block at or before a position."""
        if tokens >= self.rule.block_size:
            self.positions.add(tokens // self.rule.block_size)

    def add_prompt(self, prompt_tokens: int, junctions: Sequence[int]) -> None:
        """The positions that a prompt gives.

        A resend of the same prompt resumes before its last token, a longer one at its last whole
        block: these differ where the prompt ends with a block. `junctions` are positions where
        prompts are known or expected to part.
        """
        self.add(prompt_tokens)
        self.add(prompt_tokens - 1)
        for position in junctions:
            self.add(position)
        if self.rule.interval:
            end = min(prompt_tokens, self.rule.dense_until)
            for position in range(self.rule.interval, end + 1, self.rule.interval):
                self.add(position)

    def mask(self, start: int, end: int) -> list[bool]:
        """Which of the blocks `start` to `end - 1` to keep."""
        kept = [False] * (end - start)
        for position in self.positions:
            for block in range(max(start, position - self.rule.blocks), min(end, position)):
                kept[block - start] = True
        first_exact = -(-self.exact_from // self.rule.block_size)
        for block in range(start, min(end, first_exact)):
            kept[block - start] = False
        return kept
