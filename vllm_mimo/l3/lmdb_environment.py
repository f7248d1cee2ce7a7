"""One open LMDB environment a folder and process, shared by the engines that use it.

LMDB forbids opening an environment twice in a process. Its upkeep thread writes down, twice a
second, which values were read, since a read must not wait for the write lock; and clears the slots
of readers that were killed, which would keep old pages from being used again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import lmdb

from vllm_mimo.l3 import disk
from vllm_mimo.l3.engine import EngineUnavailable
from vllm_mimo.l3.lmdb_folder import StoreFolder, unavailable
from vllm_mimo.l3.lmdb_tables import Tables

logger = logging.getLogger("vllm.vllm_mimo")

UPKEEP_SECONDS = 0.5
_READERS_SECONDS = 10.0
_MARGIN = 64 << 20
_CLOSE_SECONDS = 1.0

_open: dict[str, Environment] = {}
_guard = threading.Lock()


class Environment:
    """A store that is open. Use `acquire` and `release`."""

    def __init__(self, path: str, map_bytes: int) -> None:
        self.users = 0
        self.folder = StoreFolder(path, map_bytes, ".".join(map(str, lmdb.version()[:2])))
        self.folder.open()
        try:
            self._env = self._open_lmdb()
            self.folder.reserve()
            self.check_space(0)
            self.tables = Tables(self._env)
            self.folder.opened()
        except (lmdb.Error, OSError, EngineUnavailable) as error:
            with contextlib.suppress(AttributeError):
                self._env.close()
            self.folder.close()
            if isinstance(error, OSError):
                raise unavailable(self.folder.path, error) from error
            if isinstance(error, EngineUnavailable):
                raise
            raise EngineUnavailable(f"{path}: LMDB cannot open its store: {error}") from error
        self.map_bytes = self.folder.map_bytes
        self._closed = False
        self._active = 0
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._used: dict[bytes, int] = {}
        self._spoilt: list[bytes] = []
        self._stop = threading.Event()
        self._upkeep = threading.Thread(target=self._run, name="l3-upkeep", daemon=True)
        self._upkeep.start()

    def begin_reading(self) -> Any:
        """A read transaction whose values are views; `end_reading` must follow."""
        self._enter()
        try:
            return self._env.begin(buffers=True)
        except BaseException:
            self._leave()
            raise

    def end_reading(self, txn: Any) -> None:
        """The views of a transaction are used no more."""
        txn.abort()
        self._leave()

    @contextlib.contextmanager
    def writing(self, need: int = 0) -> Iterator[Any]:
        """A write transaction, committed unless something is raised, of about `need` bytes."""
        self._enter()
        try:
            self.check_space(need)
            with self._env.begin(write=True) as txn:
                yield txn
        finally:
            self._leave()

    def check_space(self, need: int) -> None:
        """OSError if a write of `need` bytes could meet a full disk, which would be fatal."""
        if not self.folder.reserved:
            free = disk.free_bytes(self.folder.store)
            if free < 2 * need + _MARGIN:
                raise OSError(errno.ENOSPC, f"only {free >> 20} MiB of disk left")

    def note_used(self, keys: Sequence[bytes]) -> None:
        """Have keys marked as used, soon."""
        now = time.monotonic_ns()
        with self._guard:
            self._used.update(dict.fromkeys(keys, now))

    def note_spoilt(self, key: bytes) -> None:
        """Have a value removed, soon."""
        with self._guard:
            self._spoilt.append(key)

    def take_used(self) -> dict[bytes, int]:
        """What `note_used` was told since last time."""
        with self._guard:
            used, self._used = self._used, {}
        return used

    def flush(self) -> None:
        """Write down what was noted."""
        used = self.take_used()
        with self._guard:
            spoilt, self._spoilt = self._spoilt, []
        if used or spoilt:
            with self.writing() as txn:
                self.tables.touch(txn, used)
                for key in spoilt:
                    self.tables.delete(txn, key)

    def clear_readers(self) -> None:
        """Free the slots of readers that were killed."""
        self._enter()
        try:
            self._env.reader_check()
        finally:
            self._leave()

    def shut(self) -> bool:
        """Close, unless a call hangs in the environment: then it stays open for good."""
        self._stop.set()
        self._upkeep.join(_CLOSE_SECONDS)
        with self._guard:
            self._closed = self._idle.wait_for(lambda: self._active == 0, _CLOSE_SECONDS)
        if self._closed:
            self._env.close()
            self.folder.close()
        return self._closed

    def forget(self) -> None:
        """In a forked child: the environment is the parent's."""
        self._closed = True
        self._guard = threading.Lock()
        self.folder.close()

    def _enter(self) -> None:
        with self._guard:
            if self._closed:
                raise EngineUnavailable(f"{self.folder.path} is closed")
            self._active += 1

    def _leave(self) -> None:
        with self._guard:
            self._active -= 1
            if self._active == 0:
                self._idle.notify_all()

    def _open_lmdb(self) -> Any:
        for last in (False, True):
            try:
                return lmdb.open(
                    str(self.folder.store),
                    map_size=self.folder.map_bytes,
                    metasync=False,
                    sync=False,
                    map_async=True,
                    mode=0o600,
                    writemap=True,
                    meminit=False,
                    max_readers=512,
                    max_dbs=3,
                    max_spare_txns=16,
                )
            except lmdb.Error as error:
                if last or not self.folder.wipe():
                    raise
                logger.warning("L3 cache: %s starts empty: %s", self.folder.path, error)

    def _run(self) -> None:
        readers = time.monotonic()
        while not self._stop.wait(UPKEEP_SECONDS):
            try:
                self.flush()
                if time.monotonic() - readers > _READERS_SECONDS:
                    readers = time.monotonic()
                    self.clear_readers()
            except (lmdb.Error, OSError, EngineUnavailable) as error:
                logger.debug("L3 cache: upkeep of %s: %s", self.folder.path, error)


def acquire(path: str, map_bytes: int) -> Environment:
    """The environment of a folder, opened if need be; EngineUnavailable. Then `release` it."""
    name = os.path.realpath(path)
    with _guard:
        env = _open.get(name)
        if env is None:
            env = _open[name] = Environment(name, map_bytes)
        env.users += 1
        return env


def release(env: Environment) -> None:
    """Give an environment up; the last one closes it."""
    with _guard:
        env.users -= 1
        if env.users == 0 and env.shut():
            del _open[str(env.folder.path)]


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()
    for env in _open.values():
        env.forget()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
