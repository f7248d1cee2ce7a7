"""Calls of engines: on other threads, under a breaker, with a deadline, counted.

Gets and exists must be known at their batch's deadline; puts and the rest may wait in the queue for
as long as it takes, but a call of theirs that takes longer than `L3Settings.wait_s` is given up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from vllm_mimo.l3.batches import Part, Verb, batches
from vllm_mimo.l3.breaker import Breaker
from vllm_mimo.l3.cells import Cell
from vllm_mimo.l3.counters import Counters
from vllm_mimo.l3.engine import Status
from vllm_mimo.l3.framing import Framing
from vllm_mimo.l3.outcome import HIT, MissCause, Outcome
from vllm_mimo.l3.settings import L3Settings
from vllm_mimo.l3.transfer import Transfer
from vllm_mimo.l3.workers import Alarms, IoThreads, Job

logger = logging.getLogger("vllm.vllm_mimo")


class Calls:
    """The threads of one client, and what runs on them."""

    def __init__(self, settings: L3Settings, framing: Framing) -> None:
        self.counters = Counters()
        self.threads = IoThreads(settings.io_threads)
        self._settings, self._framing = settings, framing
        self._alarms = Alarms()
        self._warned: set[tuple[str, str]] = set()
        self._verbs: dict[Verb, Callable[[Job, Cell, Sequence[Part]], list[Outcome]]] = {
            "get": self._get,
            "put": self._put,
            "exists": self._exists,
            "touch": self._touch,
            "delete": self._delete,
        }

    def start(
        self,
        verb: Verb,
        cell: Cell,
        transfer: Transfer,
        groups: Iterable[Sequence[Part]],
        tenant: str | None = None,
    ) -> None:
        """Make a call for each group; the transfer hears of all, whatever happens."""
        urgent = verb in ("get", "exists")
        deadline = time.monotonic() + self._settings.timeout_s
        breaker = cell.reads if urgent else cell.writes
        jobs = []
        for group in groups:
            job = self._job(verb, cell, transfer, group, breaker, tenant)
            transfer.add_job()
            if breaker.refuses:
                self._end(verb, transfer, group, MissCause.BREAKER)
            elif self.threads.submit(job):
                jobs.append(job)
            else:
                self._end(verb, transfer, group, MissCause.ERROR if urgent else MissCause.DROPPED)
        if urgent and jobs:

            def at_deadline() -> None:
                for job in jobs:
                    self._late(job, breaker, verb, cell.name)
                self.counters.ended(verb, transfer.expire(MissCause.TIMEOUT))

            self._alarms.at(deadline, at_deadline)

    def close(self, seconds: float) -> None:
        """Finish what is queued, for so long, and cancel the rest."""
        self.threads.close(seconds)
        self._alarms.close()

    def warn(self, verb: str, error: object, cell: str) -> None:
        """Log a failure, each kind once: they come in thousands."""
        kind = (verb, type(error).__name__)
        level = logging.DEBUG if kind in self._warned else logging.WARNING
        self._warned.add(kind)
        where = f" of cell {cell!r}" if cell else ""
        logger.log(
            level,
            "L3 cache: %s%s failed, its values count as misses (said once): %s",
            verb,
            where,
            error if str(error) else repr(error),
        )

    def _job(
        self,
        verb: Verb,
        cell: Cell,
        transfer: Transfer,
        group: Sequence[Part],
        breaker: Breaker,
        tenant: str | None,
    ) -> Job:
        def run(job: Job) -> None:
            if transfer.statuses.done():  # the deadline passed while this was queued
                transfer.job_done()
            elif breaker.allow():
                self._end(verb, transfer, group, self._call(job, verb, cell, transfer, group))
            else:
                self._end(verb, transfer, group, MissCause.BREAKER)

        def cancel(job: Job) -> None:
            self._end(verb, transfer, group, MissCause.ERROR if job.urgent else MissCause.DROPPED)

        size = sum(part.size for part in group) if verb == "put" else 0
        return Job(run, cancel, urgent=verb in ("get", "exists"), size=size, tenant=tenant)

    def _call(
        self, job: Job, verb: Verb, cell: Cell, transfer: Transfer, group: Sequence[Part]
    ) -> list[Outcome]:
        breaker = cell.reads if job.urgent else cell.writes
        start = time.monotonic()
        if not job.urgent:

            def at_deadline() -> None:
                if self._late(job, breaker, verb, cell.name):
                    late = transfer.expire(MissCause.TIMEOUT, [part.block for part in group])
                    self.counters.ended(verb, late)

            self._alarms.at(start + self._settings.wait_s, at_deadline)
        outcomes: list[Outcome]
        try:
            outcomes = self._verbs[verb](job, cell, group)
        except BaseException as error:  # an engine may raise anything
            self.warn(verb, error, cell.name)
            outcomes = [MissCause.ERROR] * len(group)
        else:
            if MissCause.ERROR in outcomes:
                self.warn(verb, "the engine could not serve a key", cell.name)
        failed = bool(outcomes) and all(outcome is MissCause.ERROR for outcome in outcomes)
        if not job.late:
            if not failed:
                breaker.success()
            elif breaker.failure():
                self._tell_open(verb, cell.name)
        moved = sum(
            part.size for part, outcome in zip(group, outcomes, strict=True) if outcome is HIT
        )
        self.counters.called(verb, moved, time.monotonic() - start)
        return outcomes

    def _late(self, job: Job, breaker: Breaker, verb: str, cell: str) -> bool:
        """A job's deadline has passed; whether its call was running then."""
        if not self.threads.note_late(job):
            return False
        self.counters.late()
        self.warn(verb, TimeoutError("the engine did not answer in time"), cell)
        if breaker.failure():
            self._tell_open(verb, cell)
        return True

    def _tell_open(self, verb: str, cell: str) -> None:
        logger.debug("L3 cache: %s of cell %r rests after a run of failures", verb, cell)

    def _end(
        self,
        verb: Verb,
        transfer: Transfer,
        group: Sequence[Part],
        outcomes: Sequence[Outcome] | MissCause,
    ) -> None:
        if isinstance(outcomes, MissCause):
            outcomes = [outcomes] * len(group)
        indices = [part.block for part in group]
        self.counters.ended(verb, transfer.finish(zip(indices, outcomes, strict=True)))
        transfer.job_done()

    def _get(self, job: Job, cell: Cell, group: Sequence[Part]) -> list[Outcome]:
        # A local engine gets little to do at once, so that the check finds a value's bytes in the
        # CPU's cache; for others a call is a round trip.
        most = 1 << 60 if cell.engine.caps.needs_slicing else self._settings.slice_bytes
        outcomes: list[Outcome] = []
        bad: list[Part] = []
        for piece in batches(group, most):
            if job.late:
                outcomes += [MissCause.TIMEOUT] * len(piece)
                continue
            frames = [self._framing.space(part.bufs) for part in piece]
            statuses = cell.engine.get_into([part.key for part in piece], frames)
            for part, frame, status in zip(piece, frames, statuses, strict=True):
                if status is Status.HIT:
                    cause = self._framing.open(part.key, frame, part.bufs, part.total)
                    if cause is not None:
                        bad.append(part)
                    outcomes.append(cause or HIT)
                else:
                    outcomes.append(MissCause.ABSENT if status is Status.MISS else MissCause.ERROR)
        if bad:  # else nobody would ever write the right values
            self.warn("get (a damaged or foreign value)", f"key {bad[0].key.hex()}", cell.name)
            parts = [Part(number, part.key, (), 0, 0) for number, part in enumerate(bad)]
            removal = Transfer(len(parts))
            self.start("delete", cell, removal, [parts])
            removal.job_done()
        return outcomes

    def _put(self, job: Job, cell: Cell, group: Sequence[Part]) -> list[Outcome]:
        frames = [self._framing.seal(part.key, part.bufs, part.total) for part in group]
        return _plain(cell.engine.put([part.key for part in group], frames), group)

    def _exists(self, job: Job, cell: Cell, group: Sequence[Part]) -> list[Outcome]:
        return _plain(cell.engine.exists([part.key for part in group]), group)

    def _touch(self, job: Job, cell: Cell, group: Sequence[Part]) -> list[Outcome]:
        cell.engine.touch([part.key for part in group])
        return [HIT] * len(group)

    def _delete(self, job: Job, cell: Cell, group: Sequence[Part]) -> list[Outcome]:
        for part in group:
            cell.engine.delete_prefix(part.key)
        return [HIT] * len(group)


def _plain(statuses: Sequence[Status], group: Sequence[Part]) -> list[Outcome]:
    causes: dict[Status, Outcome] = {
        Status.HIT: HIT,
        Status.MISS: MissCause.ABSENT,
        Status.ERROR: MissCause.ERROR,
    }
    return [causes[status] for _, status in zip(group, statuses, strict=True)]


def in_background(work: Callable[[], None]) -> None:
    """Run something rare and slow on a thread of its own."""
    threading.Thread(target=work, name="l3-work", daemon=True).start()
