"""What one policy's replay measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

LOOKUP_BUCKETS = ((4_096, "<4K"), (16_384, "4-16K"), (65_536, "16-64K"), (262_144, "64-256K"))
"""Upper bounds of prompt lengths in tokens, exclusive, and their names."""

LONGEST_BUCKET = ">=256K"


def bucket_of(prompt_tokens: int) -> str:
    """The name of the bucket of a prompt length."""
    return next((name for bound, name in LOOKUP_BUCKETS if prompt_tokens < bound), LONGEST_BUCKET)


@dataclass(slots=True)
class Measurements:
    """Counters of one replay; token counts are of requests that were admitted."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose full-attention KV was reused."""
    reused_tokens: int = 0
    """Prompt tokens that were not computed again: cached ones less the replayed."""
    waited: int = 0
    """Requests that did not fit when they arrived."""
    wait_seconds: float = 0.0
    """Their waiting time in all, in virtual seconds."""
    preemptions: int = 0
    preempted_tokens: int = 0
    """Tokens that were computed again because their request had been preempted."""
    refused: int = 0
    """Requests that do not fit into the idle cache."""
    refused_tokens: int = 0
    peak_used: Counter[str] = field(default_factory=Counter)
    """Most blocks of each pool that running requests held."""
    peak_running: int = 0
    lookups: dict[str, list[int]] = field(default_factory=dict)
    """Nanoseconds of each lookup, by bucket of prompt length."""
    wall_seconds: float = 0.0
    """Real time that the replay took, engine included."""

    def record_lookup(self, prompt_tokens: int, nanoseconds: int) -> None:
        """Count one lookup."""
        self.lookups.setdefault(bucket_of(prompt_tokens), []).append(nanoseconds)

    def record_use(self, used: Mapping[str, int], running: int) -> None:
        """Keep the peaks."""
        for pool, blocks in used.items():
            if blocks > self.peak_used[pool]:
                self.peak_used[pool] = blocks
        self.peak_running = max(self.peak_running, running)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens whose full-attention KV was reused."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def recomputed_fraction(self) -> float:
        """Share of prompt tokens that were computed, replayed ones included."""
        return 1 - self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
