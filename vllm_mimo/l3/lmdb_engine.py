"""The embedded engine: values in LMDB on a local disk, the page cache as its memory tier.

Least recently used values go when nine tenths of the map are in use; the rest is what LMDB needs to
replace pages without touching those that readers may see.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import lmdb

from vllm_mimo.l3.engine import Buffers, EngineCaps, Status
from vllm_mimo.l3.framing import gather, length_of, scatter
from vllm_mimo.l3.lmdb_environment import Environment, acquire, release
from vllm_mimo.l3.settings import L3Settings

FULL = 0.9
"""Share of the map that may be in use."""
_TXN_BYTES = 8 << 20
_TXN_SHARE = 32
"""A write transaction takes at most this many bytes, and this part of the map."""
_ATTEMPTS = 8
_DELETES = 256


class LmdbEngine:
    """A `KVEngine` in one folder, `L3Settings.path`, whatever the cell is called."""

    def __init__(self, settings: L3Settings, cell: str = "local") -> None:
        assert settings.path is not None
        self._env: Environment = acquire(settings.path, int(settings.gib * 2**30))
        map_bytes = self._env.map_bytes
        self._limit = int(map_bytes * FULL)
        self._txn_bytes = min(_TXN_BYTES, map_bytes // _TXN_SHARE)
        self._caps = EngineCaps(
            max_value_bytes=min(1 << 30, map_bytes // 8),
            needs_slicing=False,
            pinned_buffers=False,
            survives_restart=True,
            shared=True,
        )
        self._local = threading.local()
        self._closed = False
        self._close_guard = threading.Lock()

    @property
    def caps(self) -> EngineCaps:
        """See `KVEngine`; the longest value is an eighth of the map."""
        return self._caps

    def register(self, region: memoryview) -> None:
        """Any memory will do."""

    def exists(self, keys: Sequence[bytes]) -> list[Status]:
        """See `KVEngine`. Does not read values."""
        tables = self._env.tables
        txn = self._env.begin_reading()
        try:
            return [
                Status.MISS if txn.get(key, db=tables.ages) is None else Status.HIT for key in keys
            ]
        finally:
            self._env.end_reading(txn)

    def get_into(self, keys: Sequence[bytes], bufs: Sequence[Buffers]) -> list[Status]:
        """See `KVEngine`. A value of another length is removed soon after."""
        statuses: list[Status] = []
        found: list[bytes] = []
        table = self._env.tables.values
        value: memoryview | None = None
        txn = self._env.begin_reading()
        try:
            for key, targets in zip(keys, bufs, strict=True):
                value = txn.get(key, db=table)
                if value is None:
                    statuses.append(Status.MISS)
                elif value.nbytes != length_of(targets):
                    self._env.note_spoilt(key)
                    statuses.append(Status.ERROR)
                else:
                    scatter(value, targets)
                    found.append(key)
                    statuses.append(Status.HIT)
        finally:
            del value  # a view that must not outlive the transaction
            self._env.end_reading(txn)
        self._env.note_used(found)
        return statuses

    def put(self, keys: Sequence[bytes], bufs: Sequence[Buffers], group: str = "") -> list[Status]:
        """See `KVEngine`. A value that is there with the same length is only marked as used."""
        statuses: list[Status] = []
        while len(statuses) < len(keys):
            first = last = len(statuses)
            size = 0
            while last < len(keys) and (
                last == first or size + length_of(bufs[last]) <= self._txn_bytes
            ):
                size += length_of(bufs[last])
                last += 1
            if size > self._caps.max_value_bytes:
                stored = False
            else:
                stored = self._put(keys[first:last], bufs[first:last], size)
            statuses += [Status.HIT if stored else Status.ERROR] * (last - first)
        return statuses

    def touch(self, keys: Sequence[bytes]) -> None:
        """See `KVEngine`. Other processes see it within about a second."""
        self._env.note_used(keys)

    def flush(self) -> None:
        """Write down now what was read and touched."""
        self._env.flush()

    def delete_prefix(self, prefix: bytes) -> int:
        """See `KVEngine`. The bytes stay on the disk until they are written over."""
        tables, count = self._env.tables, 0
        while True:
            with self._env.writing() as txn:
                keys = tables.starting_with(txn, prefix, _DELETES)
                for key in keys:
                    tables.delete(txn, key)
            count += len(keys)
            if len(keys) < _DELETES:
                return count

    def used_bytes(self) -> int:
        """Bytes that values and tables take up in the map."""
        txn = self._env.begin_reading()
        try:
            return self._env.tables.used_bytes(txn)
        finally:
            self._env.end_reading(txn)

    def drain(self, node: str) -> None:
        """There is only one node."""

    def close(self) -> None:
        """See `KVEngine`."""
        with self._close_guard:
            if not self._closed:
                self._closed = True
                release(self._env)

    def _put(self, keys: Sequence[bytes], bufs: Sequence[Buffers], size: int) -> bool:
        """Store values in one transaction, making room first; False if there is no room."""
        tables = self._env.tables
        joined = self._gathered(bufs, size)  # before the write lock, which is all processes'
        need = sum(tables.cost(length_of(parts)) for parts in bufs)
        for attempt in range(_ATTEMPTS):
            try:
                with self._env.writing(need) as txn:
                    if tables.used_bytes(txn) + need <= self._limit or all(
                        tables.size(txn, key) == value.nbytes
                        for key, value in zip(keys, joined, strict=True)
                    ):
                        for key, value in zip(keys, joined, strict=True):
                            tables.put(txn, key, value)
                        return True
            except lmdb.MapFullError:
                # Free pages may lie scattered, or be held for a transaction or two: free more.
                if attempt == _ATTEMPTS // 2:
                    self._env.clear_readers()
            self._evict(need * (attempt + 1))
        return False

    def _evict(self, need: int) -> None:
        """Remove the oldest values until `need` bytes fit."""
        tables, used = self._env.tables, self._env.take_used()
        with self._env.writing() as txn:
            tables.touch(txn, used)
            surplus = tables.used_bytes(txn) + need - self._limit
            while surplus > 0:
                key = tables.oldest(txn)
                if key is None:
                    break
                surplus -= tables.delete(txn, key)

    def _gathered(self, bufs: Sequence[Buffers], size: int) -> list[memoryview]:
        """Each value in one piece, in this thread's memory."""
        scratch: memoryview | None = getattr(self._local, "scratch", None)
        if scratch is None or scratch.nbytes < size:
            scratch = self._local.scratch = memoryview(bytearray(max(size, 1 << 20)))
        values, start = [], 0
        for parts in bufs:
            length = length_of(parts)
            values.append(gather(parts, scratch[start : start + length]))
            start += length
        return values
