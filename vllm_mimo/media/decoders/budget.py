"""How many decoders run at once in this process, shared fairly by the videos being decoded."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@dataclass(eq=False)
class Share:
    """One video's part in a budget."""

    budget: Budget
    running: int = 0
    """Threads that it uses now."""

    def threads(self) -> int:
        """As many as are this video's if all that are being decoded get the same; at least one."""
        return max(1, self.budget.threads // self.budget.videos)

    @contextmanager
    def take(self, most: int = 1) -> Iterator[int]:
        """Wait for one thread, and take up to `most` of those that nobody waits for then, but no
        more than a fair share. Gives how many were taken, until the block ends.
        """
        count = self.budget.take(self, min(most, self.threads()))
        try:
            yield count
        finally:
            self.budget.give(self, count)


@dataclass(eq=False)
class Budget:
    """Threads for decoding. Whoever waits for one gets it in the order of asking, but a video that
    uses fewer goes first: a long video's parts do not keep a short one waiting.
    """

    threads: int
    videos: int = 0
    """Being decoded now."""
    running: int = 0
    """Threads in use; never more than `threads`."""
    _waiting: list[tuple[Share, int]] = field(default_factory=list)
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"a budget has at least one thread, not {self.threads}")

    @contextmanager
    def video(self) -> Iterator[Share]:
        """Take part with one video, until the block ends."""
        with self._changed:
            self.videos += 1
        try:
            yield Share(self)
        finally:
            with self._changed:
                self.videos -= 1

    def take(self, share: Share, most: int) -> int:
        """Wait for a thread for a video; returns how many it has got, up to `most`."""
        with self._changed:
            turn = (share, next(self._turns))
            self._waiting.append(turn)
            try:
                self._changed.wait_for(lambda: self.running < self.threads and self._next() == turn)
            finally:
                self._waiting.remove(turn)
            spare = 0 if self._waiting else self.threads - self.running - 1
            count = 1 + max(0, min(most - 1, spare))
            self.running += count
            share.running += count
            self._changed.notify_all()
            return count

    def give(self, share: Share, count: int) -> None:
        """Give threads back."""
        with self._changed:
            self.running -= count
            share.running -= count
            self._changed.notify_all()

    def _next(self) -> tuple[Share, int]:
        return min(self._waiting, key=lambda turn: (turn[0].running, turn[1]))
