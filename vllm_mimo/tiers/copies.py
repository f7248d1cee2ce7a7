"""Queues of copies: threads on CPUs, streams on GPUs, with the same order of things.

Work in one queue is done in the order in which it was submitted. What a queue must wait for, and
what waits for it, is told by tickets.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from vllm_mimo.native.blocks import BlockView, copy_blocks


class Ticket(Protocol):
    """Stands for all that was submitted to a queue so far."""

    def order(self) -> float:
        """Let what the caller computes next come after it. Returns the seconds that it blocked."""
        ...

    def finished(self) -> bool:
        """Whether the copies are done."""
        ...

    def join(self) -> None:
        """Block until they are. Raises what a copy raised."""
        ...


class CopyQueue(Protocol):
    """Copies blocks in the background."""

    busy_s: float
    """Seconds spent copying since the start."""

    def copy(self, dst: BlockView, src: BlockView, pairs: torch.Tensor) -> None:
        """Add a copy; `pairs` is (copies, 2) int64, source and target block."""
        ...

    def after_compute(self) -> None:
        """Let what is added from now on come after all that was computed so far."""
        ...

    def after(self, ticket: Any) -> None:
        """Let what is added from now on come after another queue's ticket, on which the caller has
        called `order`."""
        ...

    def ticket(self) -> Ticket:
        """A ticket of all that was added so far."""
        ...

    def close(self) -> None:
        """Finish what was added."""
        ...


class DoneTicket:
    """Of nothing."""

    def order(self) -> float:
        return 0.0

    def finished(self) -> bool:
        return True

    def join(self) -> None:
        pass


DONE = DoneTicket()


class _ThreadTicket:
    __slots__ = ("_queue", "_serial")

    def __init__(self, queue: ThreadCopies, serial: int) -> None:
        self._queue = queue
        self._serial = serial

    def finished(self) -> bool:
        return self._queue.done >= self._serial

    def join(self) -> None:
        self._queue.wait(self._serial)

    def order(self) -> float:
        if self.finished():
            self._queue.check()
            return 0.0
        begin = time.perf_counter()
        self.join()
        return time.perf_counter() - begin


class ThreadCopies:
    """One thread that copies in order.

    Args:
        name: of the thread.
        threads: that share one large copy (`native.blocks.copy_blocks`).
        observe: called after each copy with its begin and end (`time.perf_counter`) and its target.
    """

    def __init__(
        self,
        name: str,
        threads: int = 1,
        observe: Callable[[float, float, BlockView], None] | None = None,
    ) -> None:
        self.threads = threads
        self.observe = observe
        self.busy_s = 0.0
        self.done = 0
        self._added = 0
        self._error: BaseException | None = None
        self._work: deque[tuple[BlockView, BlockView, torch.Tensor]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def copy(self, dst: BlockView, src: BlockView, pairs: torch.Tensor) -> None:
        with self._changed:
            self._work.append((dst, src, pairs))
            self._added += 1
            self._changed.notify_all()

    def after_compute(self) -> None:
        """Nothing: on a CPU what was computed is computed."""

    def after(self, ticket: Any) -> None:
        """Nothing: `order` has blocked the caller."""

    def ticket(self) -> Ticket:
        return _ThreadTicket(self, self._added)

    def wait(self, serial: int) -> None:
        """Block until so many copies are done."""
        with self._changed:
            self._changed.wait_for(lambda: self.done >= serial or self._error is not None)
        self.check()

    def check(self) -> None:
        """Raise what a copy raised: KV would be wrong."""
        if self._error is not None:
            raise RuntimeError(f"copying KV blocks failed: {self._error}") from self._error

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._work) or self._closing)
                if not self._work:
                    return
                dst, src, pairs = self._work.popleft()
            begin = time.perf_counter()
            try:
                copy_blocks(dst, src, pairs, self.threads)
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            end = time.perf_counter()
            self.busy_s += end - begin
            if self.observe is not None:
                self.observe(begin, end, dst)
            with self._changed:
                self.done += 1
                self._changed.notify_all()


class _StreamTicket:
    def __init__(self, queue: StreamCopies, event: Any) -> None:
        self._queue = queue
        self.event = event

    def order(self) -> float:
        self._queue.cuda.current_stream().wait_event(self.event)
        return 0.0

    def finished(self) -> bool:
        return bool(self.event.query())

    def join(self) -> None:
        self.event.synchronize()


class StreamCopies:
    """A CUDA stream of copies.

    Args:
        cuda: `torch.cuda`, or what stands for it in a test.
        copy: (target, source, pairs), on the current stream.
    """

    def __init__(
        self,
        cuda: Any = torch.cuda,
        copy: Callable[[BlockView, BlockView, torch.Tensor], None] = copy_blocks,
    ) -> None:
        self.cuda = cuda
        self.busy_s = 0.0
        self.stream = cuda.Stream()
        self._copy = copy

    def copy(self, dst: BlockView, src: BlockView, pairs: torch.Tensor) -> None:
        with self.cuda.stream(self.stream):
            self._copy(dst, src, pairs)

    def after_compute(self) -> None:
        self.stream.wait_stream(self.cuda.current_stream())

    def after(self, ticket: Any) -> None:
        event = getattr(ticket, "event", None)
        if event is not None:
            self.stream.wait_event(event)

    def ticket(self) -> Ticket:
        event = self.cuda.Event()
        event.record(self.stream)
        return _StreamTicket(self, event)

    def close(self) -> None:
        self.stream.synchronize()
