"""The tables of an LMDB store, and which value goes when it is full.

    values   key -> value
    ages     key -> when it was last used (8 bytes), value's length (8)
    order    when it was last used, key -> nothing; so the first entry is the oldest

All three change in one transaction, so processes that share a store agree on every value's age. The
clock is the machine's monotonic one, in nanoseconds: a store never outlives a boot.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Any

_AGE = struct.Struct(">QQ")
_STAMP = struct.Struct(">Q")
_NODE_BYTES = 16  # LMDB's own per large value
GRAIN_NS = 1_000_000_000
"""A value that was used less than this ago is not marked again."""


class Tables:
    """The three tables of one environment; every method runs in a transaction of the caller's."""

    def __init__(self, env: Any) -> None:
        with env.begin(write=True) as txn:
            self.values, self.ages, self.order = (
                env.open_db(name, txn=txn) for name in (b"values", b"ages", b"order")
            )
        self._page = env.stat()["psize"]

    def used_bytes(self, txn: Any) -> int:
        """Bytes of the pages that the tables take up."""
        pages = 0
        for table in (self.values, self.ages, self.order):
            stat = txn.stat(table)
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * self._page

    def cost(self, size: int) -> int:
        """Bytes that a value of `size` bytes takes up, with room for the tables' own growth."""
        pages = (size + _NODE_BYTES + self._page - 1) // self._page
        return (pages + 1) * self._page

    def size(self, txn: Any, key: bytes) -> int | None:
        """Length of a value in bytes; None without one."""
        age = txn.get(key, db=self.ages)
        return None if age is None else _AGE.unpack(age)[1]

    def put(self, txn: Any, key: bytes, value: memoryview) -> None:
        """Store a value as just used, replacing one of another length."""
        now = time.monotonic_ns()
        age = txn.get(key, db=self.ages)
        if age is not None:
            stamp, size = _AGE.unpack(age)
            if size == value.nbytes:
                self._restamp(txn, key, stamp, now, size)
                return
            txn.delete(_STAMP.pack(stamp) + key, db=self.order)
        txn.put(key, value, db=self.values)
        txn.put(key, _AGE.pack(now, value.nbytes), db=self.ages)
        txn.put(_STAMP.pack(now) + key, b"", db=self.order)

    def delete(self, txn: Any, key: bytes) -> int:
        """Remove a value; its cost in bytes, 0 without one."""
        age = txn.get(key, db=self.ages)
        if age is None:
            return 0
        stamp, size = _AGE.unpack(age)
        txn.delete(key, db=self.values)
        txn.delete(key, db=self.ages)
        txn.delete(_STAMP.pack(stamp) + key, db=self.order)
        return self.cost(size)

    def touch(self, txn: Any, used: Mapping[bytes, int]) -> None:
        """Note when keys were used, in monotonic nanoseconds."""
        for key, now in used.items():
            age = txn.get(key, db=self.ages)
            if age is not None:
                stamp, size = _AGE.unpack(age)
                if now - stamp >= GRAIN_NS:
                    self._restamp(txn, key, stamp, now, size)

    def oldest(self, txn: Any) -> bytes | None:
        """The key that was used longest ago."""
        with txn.cursor(self.order) as cursor:
            return bytes(cursor.key())[_STAMP.size :] if cursor.first() else None

    def starting_with(self, txn: Any, prefix: bytes, most: int) -> list[bytes]:
        """Up to `most` keys that start with `prefix`."""
        found: list[bytes] = []
        with txn.cursor(self.ages) as cursor:
            more = cursor.set_range(prefix) if prefix else cursor.first()
            while more and len(found) < most and (key := bytes(cursor.key())).startswith(prefix):
                found.append(key)
                more = cursor.next()
        return found

    def _restamp(self, txn: Any, key: bytes, old: int, new: int, size: int) -> None:
        txn.delete(_STAMP.pack(old) + key, db=self.order)
        txn.put(_STAMP.pack(new) + key, b"", db=self.order)
        txn.put(key, _AGE.pack(new, size), db=self.ages)
