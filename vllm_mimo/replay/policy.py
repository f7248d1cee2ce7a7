"""The interface between the replay engine and a policy's managers, and the policies' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vllm_mimo.replay.deployment import Deployment
    from vllm_mimo.replay.request import ReplayRequest

Clock = Callable[[], float]
"""Gives the virtual time in seconds."""


class PolicyError(ValueError):
    """A policy that does not exist or cannot be built; the message says which exist or why."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a manager found for a request. Counts are of tokens."""

    cached: int
    """Leading tokens whose full-attention KV is reused."""
    resume: int
    """Where computing starts; below `cached` where a policy replays tokens to rebuild windows."""
    nanoseconds: int
    """CPU time of the manager's lookup: on a busy machine wall time tells less."""
    handle: Any = None
    """For `admit` of the same driver."""


class CacheDriver(Protocol):
    """One policy's manager, seen by the engine the way vLLM's scheduler sees it."""

    hash_block_size: int
    """Tokens per block hash of its requests."""
    capacity: Mapping[str, int]
    """Usable blocks of each pool."""
    facts: Mapping[str, Any]
    """What the plan decided, for the report: block sizes, groups, bytes."""

    def lookup(self, request: ReplayRequest) -> Lookup:
        """Search the longest reusable prefix of a waiting request."""
        ...

    def admit(self, request: ReplayRequest, lookup: Lookup, tokens: int, idle: bool) -> bool:
        """Take the hit over and allocate the first `tokens` tokens after it.

        False, and nothing is taken, where the whole prompt does not fit now. `idle`: no other
        request is running.
        """
        ...

    def step(self, request: ReplayRequest, tokens: int) -> bool:
        """Allocate the next `tokens` tokens of a running request; False where they do not fit."""
        ...

    def finish(self, request: ReplayRequest, ended_in_tool_call: bool | None) -> None:
        """The request is done: its blocks become evictable."""
        ...

    def preempt(self, request: ReplayRequest) -> None:
        """Take all blocks from a running request, which goes back to waiting."""
        ...

    def used_blocks(self) -> Mapping[str, int]:
        """Blocks of each pool that running requests hold now."""
        ...

    def evictions(self) -> Mapping[str, int]:
        """Cached blocks evicted so far, by kind (`full`, `swa`)."""
        ...

    def miss_reasons(self) -> Mapping[str, int] | None:
        """Why tokens were not reused, in tokens by reason; None where the manager does not say."""
        ...

    def tier_figures(self) -> Mapping[str, int] | None:
        """What tiers below the pools did; None where there are none."""
        ...


class ManagerPolicy(Protocol):
    """A way of managing the KV cache, before a budget makes a manager of it."""

    @property
    def name(self) -> str:
        """As the user wrote it."""
        ...

    @property
    def deployment(self) -> Deployment:
        """Model, block size and steps."""
        ...

    def build(self, budget: int, clock: Clock) -> CacheDriver:
        """A fresh manager with `budget` bytes for one rank; raises PolicyError if too few."""
        ...
