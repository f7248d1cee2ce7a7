"""What a caller holds of a batch that is under way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from vllm_mimo.l3.outcome import HIT, MissCause, Outcome

logger = logging.getLogger("vllm.vllm_mimo")

OnKey = Callable[[int, Outcome], None]
"""Called with a key's index in the batch, once, as soon as it is known how it ended."""
OnBatch = Callable[[list[Outcome]], None]
"""Called with all outcomes, once."""


class Transfer:
    """One batch. Callbacks run on the client's threads: they must be quick and may be late.

    `statuses` resolves to one outcome per key, for gets and exists at the deadline at the latest,
    after all callbacks. `released` resolves when no engine call of this batch is running any more:
    until then the buffers belong to the engine, however `statuses` came out. Neither ever holds an
    exception, and cancelling them has no effect.
    """

    def __init__(
        self, count: int, on_key: OnKey | None = None, on_batch: OnBatch | None = None
    ) -> None:
        self.statuses: Future[list[Outcome]] = Future()
        self.released: Future[None] = Future()
        self.statuses.set_running_or_notify_cancel()  # a cancelled future could not be resolved
        self.released.set_running_or_notify_cancel()
        self._on_key, self._on_batch = on_key, on_batch
        self._guard = threading.Lock()
        self._outcomes: list[Outcome | None] = [None] * count
        self._parts = [1] * count
        self._unknown = count
        self._jobs = 1  # the caller of `expect`, who lets go with `job_done`
        if count == 0:
            self._resolve()

    def expect(self, index: int, parts: int) -> None:
        """A key takes several parts, which must all be hits."""
        self._parts[index] = parts

    def add_job(self) -> None:
        """One more job that may use the buffers."""
        with self._guard:
            self._jobs += 1

    def job_done(self) -> None:
        """A job uses the buffers no more."""
        with self._guard:
            self._jobs -= 1
            last = self._jobs == 0
        if last:
            self.released.set_result(None)

    def finish(self, results: Iterable[tuple[int, Outcome]]) -> list[tuple[int, Outcome]]:
        """Parts of keys ended; returns the keys that are decided by that."""
        decided: list[tuple[int, Outcome]] = []
        with self._guard:
            for index, outcome in results:
                if self._outcomes[index] is None:
                    self._parts[index] -= 1
                    if outcome is not HIT or self._parts[index] == 0:
                        self._outcomes[index] = outcome
                        decided.append((index, outcome))
        if not decided:
            return decided
        if self._on_key is not None:
            for index, outcome in decided:
                guarded(self._on_key, index, outcome)
        with self._guard:  # only now, so that nobody resolves before these callbacks have run
            self._unknown -= len(decided)
            last = self._unknown == 0
        if last:
            self._resolve()
        return decided

    def expire(
        self, cause: MissCause, indices: Sequence[int] | None = None
    ) -> list[tuple[int, Outcome]]:
        """Decide what is not known yet."""
        chosen = range(len(self._outcomes)) if indices is None else indices
        return self.finish([(index, cause) for index in chosen])

    def _resolve(self) -> None:
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        if self._on_batch is not None:
            guarded(self._on_batch, outcomes)
        self.statuses.set_result(outcomes)


def guarded(callback: Callable[..., None], *args: object) -> None:
    """Call back; an exception is the caller's mistake and must not stop a thread of ours."""
    try:
        callback(*args)
    except Exception:
        logger.exception("L3 cache: a callback failed")
