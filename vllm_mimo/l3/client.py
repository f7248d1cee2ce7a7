"""The client of the third tier: values by label and block, as futures with a deadline.

A batch is cut into calls, which threads make in any order, gets before puts. Whatever an engine
does, gets are answered by their deadline, and a wrong byte is a miss. `Transfer` says who owns the
buffers when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from vllm_mimo.l3.batches import Part, Verb, batches, flat, slices, whole_blocks
from vllm_mimo.l3.calls import Calls, in_background
from vllm_mimo.l3.cells import Cell, Cells, Factory
from vllm_mimo.l3.counters import L3Stats
from vllm_mimo.l3.directory import Directory
from vllm_mimo.l3.engine import Buffers
from vllm_mimo.l3.framing import length_of, make_framing
from vllm_mimo.l3.keys import BlockKey, KeySpace, Label, slice_key, tenant_prefix
from vllm_mimo.l3.outcome import MissCause
from vllm_mimo.l3.settings import L3Settings
from vllm_mimo.l3.transfer import OnBatch, OnKey, Transfer

_GET_BYTES = 4 << 20
"""A thread takes about so many bytes of a batch of gets before it looks for others' work."""
_PUT_BYTES = 4 << 20
"""A put call takes about so many bytes: larger ones cost fewer transactions, smaller ones less
patience of the gets behind them."""
_CLOSE_SECONDS = 2.0


class L3Client:
    """Verbs may be called by any thread; they queue work and return at once.

    Raises EngineUnavailable when made if no cell's engine can be opened, ValueError for a bad
    encryption key file, ImportError without the library for it.
    """

    def __init__(
        self,
        directory: Directory,
        factory: Factory,
        settings: L3Settings,
        keyspace: KeySpace,
    ) -> None:
        self.settings = settings
        self.keyspace = keyspace
        """In force for calls to come; assign another when the weights change."""
        self._framing = make_framing(settings.encryption_key_file)
        self._calls = Calls(settings, self._framing)
        try:
            self._cells = Cells(directory, factory, settings.breaker_s, self._calls.warn)
        except BaseException:
            self._calls.close(0.0)
            raise
        self._lengths: dict[int, int] = {}  # bytes of a group's values, for slices
        self._deleting: dict[str, int] = {}
        self._guard = threading.RLock()  # callbacks may call the client again
        self._closed = False

    def register(self, region: memoryview) -> None:
        """Tell the engines of memory that buffers will lie in; before the first call."""
        self._cells.register(region)

    def exists(
        self, label: Label, keys: Sequence[BlockKey], on_batch: OnBatch | None = None
    ) -> Transfer:
        """Which keys a get would probably find; the rest ABSENT, or another cause."""
        return self._without_values("exists", label, keys, on_batch)

    def touch(self, label: Label, keys: Sequence[BlockKey]) -> Transfer:
        """Mark values as used, so that they are not evicted before others; HIT means told."""
        return self._without_values("touch", label, keys, None)

    def put(
        self,
        label: Label,
        keys: Sequence[BlockKey],
        bufs: Sequence[Buffers],
        on_key: OnKey | None = None,
        on_batch: OnBatch | None = None,
    ) -> Transfer:
        """Store values, each gathered from its buffers, which must not change until `released`.

        HIT where stored. No deadline in the queue, which is bounded: what does not fit is DROPPED.
        """
        transfer = Transfer(len(keys), on_key, on_batch)
        cell = self._cells.of(label)
        with self._guard:  # so that a deletion either drops this or waits for it
            if cell is None or self._closed or label.tenant in self._deleting:
                cause = MissCause.ERROR if cell is None or self._closed else MissCause.DROPPED
                self._refuse("put", transfer, cause)
            else:
                parts = self._parts(transfer, cell, label, keys, bufs, "put")
                self._calls.start(
                    "put", cell, transfer, whole_blocks(parts, _PUT_BYTES), label.tenant
                )
        transfer.job_done()
        return transfer

    def get_into(
        self,
        label: Label,
        keys: Sequence[BlockKey],
        bufs: Sequence[Buffers],
        on_key: OnKey | None = None,
        on_batch: OnBatch | None = None,
    ) -> Transfer:
        """Read values, each scattered to its buffers, whose total length must be the value's.

        Buffers of keys that are no HIT hold anything, and until `released` are still written to.
        """
        start = time.monotonic()
        transfer = Transfer(len(keys), on_key, on_batch)
        transfer.statuses.add_done_callback(
            lambda _: self._calls.counters.took(time.monotonic() - start)
        )
        cell = self._cells.of(label)
        if cell is None or self._closed:
            self._refuse("get", transfer, MissCause.ERROR)
        else:
            parts = self._parts(transfer, cell, label, keys, bufs, "get")
            share = sum(part.total for part in parts) // self.settings.io_threads
            most = max(self.settings.slice_bytes, min(share, _GET_BYTES))
            self._calls.start("get", cell, transfer, batches(parts, most))
        transfer.job_done()
        return transfer

    def delete_tenant(self, tenant: str) -> Future[int]:
        """Delete a tenant's values of all models and ranks: how many engine keys there were.

        Puts of the tenant that this client has queued, or is asked for meanwhile, are dropped. The
        future holds the engine's exception if a cell could not delete.
        """
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._guard:
            self._deleting[tenant] = self._deleting.get(tenant, 0) + 1
        threads = self._calls.threads

        def work() -> None:
            try:
                threads.drop(lambda job: job.tenant == tenant)
                if not threads.wait_for_none(
                    lambda job: job.tenant == tenant, 2 * self.settings.wait_s
                ):
                    raise TimeoutError(f"a put of tenant {tenant!r} hangs: delete again")
                prefix = tenant_prefix(tenant)
                future.set_result(sum(cell.engine.delete_prefix(prefix) for cell in self._cells))
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._guard:
                    self._deleting[tenant] -= 1
                    if not self._deleting[tenant]:
                        del self._deleting[tenant]

        in_background(work)
        return future

    def stats(self) -> L3Stats:
        """Counts since the client was made."""
        opened = sum(cell.reads.times_opened + cell.writes.times_opened for cell in self._cells)
        return self._calls.counters.snapshot(opened)

    def close(self) -> None:
        """Store what is queued, for at most `wait_s`, and close the engines.

        Returns after about `wait_s` and two seconds even if an engine hangs; the buffers of its
        calls stay unreleased. Later calls of the client end as ERROR.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self._calls.close(self.settings.wait_s)
        self._cells.close(_CLOSE_SECONDS)

    def _without_values(
        self, verb: Verb, label: Label, keys: Sequence[BlockKey], on_batch: OnBatch | None
    ) -> Transfer:
        transfer = Transfer(len(keys), None, on_batch)
        cell = self._cells.of(label)
        if cell is None or self._closed:
            self._refuse(verb, transfer, MissCause.ERROR)
        elif keys:
            parts: list[Part] = []
            for index, key in enumerate(self.keyspace.keys(label.tenant, keys)):
                count = self._slice_count(cell, keys[index][0])
                transfer.expect(index, count)
                parts += [Part(index, slice_key(key, part), (), 0, 0) for part in range(count)]
            self._calls.start(verb, cell, transfer, [parts])
        transfer.job_done()
        return transfer

    def _parts(
        self,
        transfer: Transfer,
        cell: Cell,
        label: Label,
        keys: Sequence[BlockKey],
        bufs: Sequence[Buffers],
        verb: Verb,
    ) -> list[Part]:
        parts: list[Part] = []
        caps, step = cell.engine.caps, self._step(cell)
        engine_keys = self.keyspace.keys(label.tenant, keys)
        for index, (key, views) in enumerate(zip(engine_keys, bufs, strict=True)):
            views = flat(views, writable=verb == "get")
            total = length_of(views)
            if not caps.needs_slicing:
                if total + self._framing.overhead > caps.max_value_bytes:
                    self._calls.warn(verb, f"a value of {total} bytes is too long", cell.name)
                    self._refuse(verb, transfer, MissCause.ERROR, [index])
                else:
                    parts.append(Part(index, key, views, total, total))
                continue
            self._lengths[keys[index][0]] = total
            pieces = slices(views, step)
            transfer.expect(index, len(pieces))
            # The first slice is stored last: where it is, the others were stored too.
            parts += [
                Part(
                    index, slice_key(key, number), pieces[number], length_of(pieces[number]), total
                )
                for number in reversed(range(len(pieces)))
            ]
        return parts

    def _step(self, cell: Cell) -> int:
        """Bytes of a value in one slice."""
        return min(
            self.settings.slice_bytes, cell.engine.caps.max_value_bytes - self._framing.overhead
        )

    def _slice_count(self, cell: Cell, group: int) -> int:
        """Slices of a group's values; 1 before the first was seen."""
        if not cell.engine.caps.needs_slicing:
            return 1
        return max(1, -(-self._lengths.get(group, 0) // self._step(cell)))

    def _refuse(
        self, verb: Verb, transfer: Transfer, cause: MissCause, indices: list[int] | None = None
    ) -> None:
        self._calls.counters.ended(verb, transfer.expire(cause, indices))
