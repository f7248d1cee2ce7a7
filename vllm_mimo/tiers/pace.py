"""How quickly steps compute, for the choice between reading and computing."""

from __future__ import annotations

import time
from collections.abc import Callable

_SMALL = 32
"""Steps of fewer tokens decode: they say nothing about a prefill's pace."""
_NEW = 0.2


class Pace:
    """A running mean over steps that prefill.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens_per_s = 0.0
        """0 before the first such step has ended."""
        self._clock = clock
        self._tokens = 0
        self._since = 0.0

    def step(self, tokens: int) -> None:
        """A step of so many tokens was scheduled: the one before it is over, or nearly so."""
        now = self._clock()
        if self._tokens >= _SMALL:
            pace = self._tokens / max(1e-6, now - self._since)
            old = self.tokens_per_s
            self.tokens_per_s = pace if not old else (1 - _NEW) * old + _NEW * pace
        self._tokens, self._since = tokens, now
