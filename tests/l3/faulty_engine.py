"""An engine with faults on order, also in a process that one can reach only through its config.

    settings: {"engine": "tests.l3.faulty_engine:FaultyEngine", "path": "..."}

It wraps the LMDB engine, or one in memory where the settings have no path. Faults are read from a
JSON file before each call: the one named by the environment's L3_FAULTS, else the path with
".faults" added (`set_faults` writes either). It maps a verb, or "*", to a fault:

    {"get_into": {"kind": "hang"}, "*": {"kind": "raise"}}

    raise       raises RuntimeError
    unavailable raises EngineUnavailable, when the engine is made (verb "open")
    hang        waits, until the fault is taken away or for "seconds"; then serves the call
    scribble    as hang, but then writes 0xEE over all buffers and answers HIT
    short       answers one status too few
    error       answers ERROR for every key
    foreign     reads another key's value into the buffers, and answers HIT
    torn        serves the call and then damages each value's last byte
    half        fills only the first half of each value, and answers HIT
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.l3.memory_engine import MemoryEngine
from vllm_mimo.l3.engine import EngineUnavailable, Status
from vllm_mimo.l3.lmdb_engine import LmdbEngine
from vllm_mimo.l3.settings import L3Settings


def faults_file(path: str | None) -> Path | None:
    name = os.environ.get("L3_FAULTS") or (f"{path}.faults" if path else None)
    return Path(name) if name else None


def set_faults(path: str | None, faults: dict[str, dict]) -> None:
    file = faults_file(path)
    assert file is not None, "neither a path nor L3_FAULTS"
    new = file.with_name(file.name + ".new")
    new.write_text(json.dumps(faults))
    new.replace(file)


class FaultyEngine:
    def __init__(self, settings: L3Settings, cell: str) -> None:
        self._file = faults_file(settings.path)
        fault = self._fault("open")
        if fault.get("kind") == "unavailable":
            raise EngineUnavailable("ordered by the test")
        if fault.get("kind") == "raise":
            raise RuntimeError("ordered by the test")
        self.inner = LmdbEngine(settings, cell) if settings.path else MemoryEngine(settings, cell)
        self._last: tuple[bytes, int] | None = None

    @property
    def caps(self):
        return self.inner.caps

    def exists(self, keys):
        return self._serve("exists", lambda: self.inner.exists(keys), len(keys))

    def put(self, keys, bufs, group=""):
        if keys:
            self._last = keys[-1], sum(part.nbytes for part in bufs[-1])
        return self._serve("put", lambda: self.inner.put(keys, bufs, group), len(keys), bufs)

    def get_into(self, keys, bufs):
        if self._fault("get_into").get("kind") == "foreign":
            others = [*keys[1:], keys[0]] if len(keys) > 1 else [self._last[0]]
            return self.inner.get_into(others, bufs)
        return self._serve(
            "get_into", lambda: self.inner.get_into(keys, bufs), len(keys), bufs, reading=True
        )

    def register(self, region):
        self.inner.register(region)

    def touch(self, keys):
        self._serve("touch", lambda: self.inner.touch(keys), 0)

    def delete_prefix(self, prefix):
        return self._serve("delete_prefix", lambda: self.inner.delete_prefix(prefix), 0)

    def drain(self, node):
        self._serve("drain", lambda: self.inner.drain(node), 0)

    def close(self):
        self._serve("close", self.inner.close, 0)

    def _fault(self, verb: str) -> dict:
        try:
            faults = json.loads(self._file.read_text()) if self._file else {}
        except FileNotFoundError:
            return {}
        return faults.get(verb) or faults.get("*") or {}

    def _serve(self, verb: str, call: Callable, count: int, bufs=(), reading=False):
        fault = self._fault(verb)
        kind = fault.get("kind")
        if kind == "raise":
            raise RuntimeError("ordered by the test")
        if kind in ("hang", "scribble"):
            until = time.monotonic() + fault.get("seconds", 1e9)
            while time.monotonic() < until and self._fault(verb) == fault:
                time.sleep(0.005)
        if kind == "scribble" and reading:
            for parts in bufs:
                for part in parts:
                    part[:] = b"\xee" * part.nbytes
            return [Status.HIT] * count
        if kind == "error":
            return [Status.ERROR] * count
        if kind == "half" and reading:
            statuses = call()
            for parts in bufs:
                rest = parts[-1][parts[-1].nbytes // 2 :]
                rest[:] = bytes(rest.nbytes)
            return statuses
        answer = call()
        if kind == "torn" and reading:
            for parts in bufs:
                parts[-1][-1] ^= 1
        return answer[:-1] if kind == "short" else answer
