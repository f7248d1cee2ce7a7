"""An engine in a dict, as simple as can be, with the caps that a test wants."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from vllm_mimo.l3.engine import Buffers, EngineCaps, Status


class MemoryEngine:
    def __init__(self, settings=None, cell: str = "", max_value_bytes=1 << 30, slicing=False):
        self.caps = EngineCaps(max_value_bytes, slicing, False, False, False)
        self.values: dict[bytes, bytes] = {}
        self.touched: list[bytes] = []
        self.closed = False
        self.guard = threading.Lock()

    def register(self, region: memoryview) -> None:
        pass

    def exists(self, keys: Sequence[bytes]) -> list[Status]:
        return [Status.HIT if key in self.values else Status.MISS for key in keys]

    def put(self, keys, bufs: Sequence[Buffers], group="") -> list[Status]:
        with self.guard:
            for key, parts in zip(keys, bufs, strict=True):
                value = b"".join(parts)
                assert len(value) <= self.caps.max_value_bytes
                self.values[key] = value
        return [Status.HIT] * len(keys)

    def get_into(self, keys, bufs: Sequence[Buffers]) -> list[Status]:
        statuses = []
        for key, parts in zip(keys, bufs, strict=True):
            value = self.values.get(key)
            if value is None:
                statuses.append(Status.MISS)
            elif len(value) != sum(part.nbytes for part in parts):
                statuses.append(Status.ERROR)
            else:
                start = 0
                for part in parts:
                    part[:] = value[start : start + part.nbytes]
                    start += part.nbytes
                statuses.append(Status.HIT)
        return statuses

    def touch(self, keys: Sequence[bytes]) -> None:
        self.touched += keys

    def delete_prefix(self, prefix: bytes) -> int:
        with self.guard:
            found = [key for key in self.values if key.startswith(prefix)]
            for key in found:
                del self.values[key]
        return len(found)

    def drain(self, node: str) -> None:
        pass

    def close(self) -> None:
        self.closed = True
