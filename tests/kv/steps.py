"""A step of the engine, and what it samples."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_RUNNING = 4
"""Requests that run at once."""


@dataclass
class Step:
    """A scheduled step whose output is not yet processed."""

    number: int
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    sampled: dict[str, int] = field(default_factory=dict)


def greedy_token(prefix: int) -> int:
    """The token that follows a numbered prefix: always the same one."""
    return (prefix * 7 + 3) % 5
