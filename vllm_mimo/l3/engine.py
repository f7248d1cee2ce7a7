"""The interface of a store of values by key, as the client of the third tier sees it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Status(enum.Enum):
    """What an engine says of one key. An error is a miss to callers, but counted apart."""

    HIT = "hit"
    MISS = "miss"
    ERROR = "error"


class EngineUnavailable(Exception):
    """The engine cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class EngineCaps:
    """What an engine can do."""

    max_value_bytes: int
    """The longest value, in bytes."""
    needs_slicing: bool
    """Whether the client must cut values into slices of `L3Settings.slice_bytes`."""
    pinned_buffers: bool
    """Whether buffers must lie in memory that `KVEngine.register` was told of."""
    survives_restart: bool
    """Whether values outlive the process."""
    shared: bool
    """Whether other processes find what this one puts."""


Buffers = Sequence[memoryview]
"""One value in several places: it is gathered from, or scattered to, these in order. Views of
bytes, contiguous, writable for a get."""


class KVEngine(Protocol):
    """Values by key. All methods but `close` may be called by several threads at once.

    Statuses are one per key, in order. A method may raise anything: the client then takes all its
    keys for errors. Buffers are the engine's until the method returns, and not after.
    """

    @property
    def caps(self) -> EngineCaps:
        """What this engine can do; it never changes."""

    def register(self, region: memoryview) -> None:
        """Tell of memory that buffers will lie in, once, before they do."""

    def exists(self, keys: Sequence[bytes]) -> list[Status]:
        """HIT for keys that a get would find now."""

    def put(self, keys: Sequence[bytes], bufs: Sequence[Buffers], group: str = "") -> list[Status]:
        """Store values; HIT where the value is stored now, also if it was before.

        ``group`` is a hint: values of one group are best kept together.
        """

    def get_into(self, keys: Sequence[bytes], bufs: Sequence[Buffers]) -> list[Status]:
        """Copy values into buffers; HIT only where the value had exactly their total length.

        A value of another length is an ERROR, and leaves the buffers in any state.
        """

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark keys as used now; absent ones are no error."""

    def delete_prefix(self, prefix: bytes) -> int:
        """Delete all keys that start with `prefix`; how many there were."""

    def drain(self, node: str) -> None:
        """Move values away from a node that is about to leave, where there are nodes."""

    def close(self) -> None:
        """Give everything back; safe to call twice. Later calls raise."""
