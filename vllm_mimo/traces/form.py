"""What every reader gives: requests with token counts, times and opaque block ids, no text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BlockRuns = tuple[tuple[int, int], ...]
"""Block ids in order, run-length coded: (first id, count) stands for `count` ascending ids.

An id names a block together with everything before it, so equal ids mean equal prefixes."""


class TraceError(ValueError):
    """A trace that cannot be read or used; the message names file, line and what to do."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    arrival_s: float
    """Seconds since the session's start in session traces, since the trace's start in others."""
    session: str
    """Name of the session, empty where the trace has none."""
    input_tokens: int
    output_tokens: int
    block_size: int
    """Tokens of one trace block; 0 where the trace has no blocks."""
    prompt_blocks: BlockRuns = ()
    """Ids of the prompt's blocks. A last one may be partial: it never covers more than that."""
    output_blocks: BlockRuns = ()
    """Ids of the blocks after those, as far as the trace tells what the output became: the first
    may start within the prompt, all end within the output."""
    duration_s: float | None = None
    """Seconds that the server took; None where the trace does not say."""
    think_s: float | None = None
    """Seconds that the client waited before it sent this request."""
    ended_in_tool_call: bool | None = None
    """Whether the output ended in a tool call; None where the trace does not say."""
    agent: str = ""
    """Which agent of the session asked."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace, in the order of its file."""

    path: Path
    format: str
    timing: Literal["sessions", "timestamps"]
    """`sessions`: times count from each session's start, who plays them when is the user's choice.
    `timestamps`: times count from the trace's start."""
    requests: tuple[TraceRequest, ...]

    @property
    def has_blocks(self) -> bool:
        """Whether requests carry block ids, without which nothing can be reused."""
        return any(request.block_size for request in self.requests)


def count_blocks(runs: BlockRuns) -> int:
    """Blocks in `runs`."""
    return sum(count for _, count in runs)


def runs_of(ids: list[int], base: int = 0) -> BlockRuns:
    """Run-length code `ids`, each plus `base`."""
    runs: list[list[int]] = []
    for block in ids:
        if runs and block + base == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([block + base, 1])
    return tuple((first, count) for first, count in runs)
