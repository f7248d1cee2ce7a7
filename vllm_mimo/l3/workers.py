"""Threads that call engines: gets before puts, and no call that hangs stops the others."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger("vllm.vllm_mimo")

QUEUE_BYTES = 256 << 20
"""Puts wait in a queue of at most so many bytes; the caller keeps their buffers meanwhile ..."""
QUEUE_JOBS = 4096
"""... and of at most so many jobs."""


@dataclass(eq=False, slots=True)
class Job:
    """One call of an engine."""

    run: Callable[[Job], None] | None
    """Does it. None once it is done, so that nothing holds its buffers."""
    cancel: Callable[[Job], None]
    """Called instead of `run`, for a job that is taken out of the queue."""
    urgent: bool
    size: int = 0
    """Bytes, of a put."""
    tenant: str | None = None
    """Whose values it stores."""
    late: bool = False
    """Its deadline passed while it ran: it counts no more."""


class IoThreads:
    """A pool of daemon threads. A thread whose call is late is replaced, up to as many again."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._slow_most = max(1, threads // 2)
        self._guard = threading.Lock()
        self._work = threading.Condition(self._guard)
        self._ended = threading.Condition(self._guard)
        self._urgent: deque[Job] = deque()
        self._slow: deque[Job] = deque()
        self._slow_bytes = 0
        self._running: set[Job] = set()
        self._live = 0
        self._idle = 0
        self._lost = 0
        self._closed = False

    def submit(self, job: Job) -> bool:
        """Queue a job; False for one that finds its queue full or closed."""
        with self._guard:
            if self._closed:
                return False
            if job.urgent:
                self._urgent.append(job)
            else:
                full = self._slow_bytes + job.size > QUEUE_BYTES and self._slow_bytes > 0
                if full or len(self._slow) >= QUEUE_JOBS:
                    return False
                self._slow.append(job)
                self._slow_bytes += job.size
            self._staff()
            self._work.notify()
        return True

    def note_late(self, job: Job) -> bool:
        """A job's deadline has passed: replace its thread if it is running; whether it is."""
        with self._guard:
            if job not in self._running or job.late:
                return False
            job.late = True
            self._lost += 1
            self._staff()
            self._work.notify()  # a put's place may be free
            self._ended.notify_all()
            return True

    def drop(self, unwanted: Callable[[Job], bool]) -> None:
        """Cancel queued jobs."""
        dropped = []
        with self._guard:
            for queue in (self._urgent, self._slow):
                chosen = [job for job in queue if unwanted(job)]
                for job in chosen:
                    queue.remove(job)
                    self._slow_bytes -= 0 if job.urgent else job.size
                dropped += chosen
        for job in dropped:
            job.cancel(job)

    def wait_for_none(self, wanted: Callable[[Job], bool], seconds: float) -> bool:
        """Wait until no such job is running; whether that came true."""
        with self._guard:
            return self._ended.wait_for(
                lambda: not any(wanted(job) for job in self._running), seconds
            )

    def close(self, seconds: float) -> bool:
        """Let queued jobs run for up to `seconds`, cancel the rest; whether no call is running."""
        with self._guard:
            self._ended.wait_for(
                lambda: not (self._urgent or self._slow) and all(job.late for job in self._running),
                seconds,
            )
            self._closed = True
            self._work.notify_all()
        self.drop(lambda job: True)
        with self._guard:
            return not self._running

    def _staff(self) -> None:
        """Start a thread if there is work for one more. Under the lock."""
        able = self._live - self._lost
        waiting = len(self._urgent) + len(self._slow)
        if waiting > self._idle and able < self._threads and self._lost <= self._threads:
            self._live += 1
            threading.Thread(target=self._loop, name="l3-io", daemon=True).start()

    def _next(self) -> Job | None:
        """A job that may start, if there is one. Under the lock."""
        if self._urgent:
            return self._urgent.popleft()
        slow = sum(not job.urgent and not job.late for job in self._running)
        if self._slow and slow < self._slow_most:
            job = self._slow.popleft()
            self._slow_bytes -= job.size
            return job
        return None

    def _loop(self) -> None:
        while True:
            with self._guard:
                while (job := self._next()) is None and not self._closed:
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if job is None:
                    self._live -= 1
                    return
                self._running.add(job)
            try:
                assert job.run is not None
                job.run(job)
            finally:
                with self._guard:
                    job.run = None
                    self._running.discard(job)
                    self._ended.notify_all()
                    if self._slow:
                        self._work.notify()
                    if job.late:
                        self._lost -= 1
                    surplus = self._live - self._lost > self._threads
                    if surplus:
                        self._live -= 1
            if surplus:
                return


class Alarms:
    """One thread that calls back at given times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._loop, name="l3-alarms", daemon=True).start()

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at a monotonic time; callbacks must be quick and must not raise."""
        with self._changed:
            heapq.heappush(self._heap, (when, next(self._numbers), callback))
            if self._heap[0][0] >= when:
                self._changed.notify()

    def close(self) -> None:
        """End the thread once all alarms have gone off."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    if self._closed and not self._heap:
                        return
                    wait = self._heap[0][0] - time.monotonic() if self._heap else None
                    self._changed.wait(wait if wait is None else max(wait, 0.0))
                _, _, callback = heapq.heappop(self._heap)
            try:
                callback()
            except Exception:
                logger.exception("L3 cache: an alarm failed")
            del callback  # and with it the batch
