"""A circuit breaker: an engine that keeps failing is left alone for a while."""

from __future__ import annotations

import threading
import time

RUN = 2
"""So many failures in a row open the breaker: one may be bad luck, and each costs a deadline."""


class Breaker:
    """Closed, open for `seconds` after a run of failures, then open to one call that finds out."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._guard = threading.Lock()
        self._failures = 0
        self._until: float | None = None  # None: closed
        self._probing = False
        self.times_opened = 0

    @property
    def refuses(self) -> bool:
        """Whether a call would be refused now; asking does not use up the probe."""
        with self._guard:
            return self._until is not None and (self._probing or time.monotonic() < self._until)

    def allow(self) -> bool:
        """Ask before a call; if allowed, `success` or `failure` must follow."""
        with self._guard:
            if self._until is None:
                return True
            if self._probing or time.monotonic() < self._until:
                return False
            self._probing = True
            return True

    def success(self) -> None:
        """A call was answered in time."""
        with self._guard:
            self._failures, self._until, self._probing = 0, None, False

    def failure(self) -> bool:
        """A call failed or was late; whether that opened the breaker."""
        with self._guard:
            self._failures += 1
            opens = self._probing or (self._failures >= RUN and self._until is None)
            if opens:
                self.times_opened += 1
                self._until = time.monotonic() + self._seconds
            self._probing = False
            return opens
