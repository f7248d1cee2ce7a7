"""Operations that workers carry out: an operation has ended when all of them have reported it."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_mimo.tiers.moves import TierReport


class Operations:
    """Numbers and open reports.

    Args:
        workers: that report each operation.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._last = 0
        self._missing: dict[int, int] = {}
        """Operation -> workers that have not reported it."""
        self._failed: dict[int, set[int]] = {}
        self._background: set[int] = set()

    def begin(self) -> int:
        """A new operation, which ends with a step."""
        self._last += 1
        self._missing[self._last] = self.workers
        return self._last

    def begin_in_background(self) -> int:
        """A new operation, which may last for many steps: none is needed for its sake."""
        op = self.begin()
        self._background.add(op)
        return op

    @property
    def need_steps(self) -> bool:
        """Whether operations are open that end with a step."""
        return len(self._missing) > len(self._background)

    def report(self, report: TierReport) -> Iterator[tuple[int, set[int]]]:
        """The operations that have ended with this report, and which of their blocks failed."""
        for op, failed in report.failed.items():
            self._failed.setdefault(op, set()).update(failed)
        for op, workers in report.done.items():
            self._missing[op] -= workers
            if not self._missing[op]:
                del self._missing[op]
                self._background.discard(op)
                yield op, self._failed.pop(op, set())
