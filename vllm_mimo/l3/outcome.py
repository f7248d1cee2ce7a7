"""How a key of a transfer ended: HIT, or the cause of its miss."""

from __future__ import annotations

import enum
from typing import Literal

from vllm_mimo.l3.engine import Status


class MissCause(enum.Enum):
    """Why a value is not there for the caller, or was not stored."""

    ABSENT = "absent"
    """The engine has no such key."""
    CORRUPT = "corrupt"
    """Checksum, tag or length are wrong: torn, truncated or damaged."""
    FOREIGN = "foreign"
    """Not ours: another format, another key's value, or under another encryption key."""
    TIMEOUT = "timeout"
    """Not known by the deadline."""
    ERROR = "error"
    """The engine failed, or the client is closed."""
    BREAKER = "breaker"
    """Not tried, since the engine failed a moment ago."""
    DROPPED = "dropped"
    """A put that was not tried: the queue was full, or the tenant was deleted meanwhile."""


HIT: Literal[Status.HIT] = Status.HIT
"""A key that was found, read and checked, or stored."""

Outcome = Literal[Status.HIT] | MissCause
