"""The folder of an LMDB store: whose it is, whether it can be trusted, and how large it may get.

    format.json   what wrote the folder: layout, LMDB version, boot id, bytes of the map
    opening.lock  held for the moment of opening
    using.lock    held, shared, for as long as the folder is in use
    store/        LMDB's own two files

Pages that were never synced may be torn after the machine went down, LMDB's own among them; so the
store is wiped when the boot id is another one than at the last opening. Killed processes do no
harm: their pages are in the kernel's hands.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from vllm_mimo.l3 import disk
from vllm_mimo.l3.engine import EngineUnavailable

logger = logging.getLogger("vllm.vllm_mimo")

FORMAT = 1
"""Version of the folder's layout and of the store's tables."""
MIN_BYTES = 8 << 20
"""A store smaller than this is of no use."""
_OPENING_SECONDS = 10.0
_MARGIN = 1 << 20


def boot_id() -> str:
    """The kernel's name for the time since the machine started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class StoreFolder:
    """A folder that this process uses, from `open` to `close`."""

    def __init__(self, path: str, wanted_bytes: int, lmdb_version: str) -> None:
        self.path = Path(path)
        self.store = self.path / "store"
        self.map_bytes = wanted_bytes - wanted_bytes % (1 << 20)
        self.reserved = False
        """Whether the whole map has its space on the disk already."""
        self._lmdb_version = lmdb_version
        self._wanted = self.map_bytes
        self._files: dict[str, int] = {}
        self._alone = False

    def open(self) -> None:
        """Make or check the folder, wiping what cannot be trusted, and fix `map_bytes`.

        The caller opens LMDB and calls `reserve` and `opened` next: nobody else can open until
        then. Raises EngineUnavailable.
        """
        try:
            self._make()
            self._lock("opening.lock", fcntl.LOCK_EX, _OPENING_SECONDS)
            self._alone = self._lock("using.lock", fcntl.LOCK_EX, 0.0)
            marker = self._marker()
            if self._alone:
                self._check_alone(marker)
            else:
                self._lock("using.lock", fcntl.LOCK_SH, 1.0)
                self._check_shared(marker)
            if disk.free_bytes(self.path) < _MARGIN and not self._has_file("lock.mdb"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.close()
            raise unavailable(self.path, error) from error
        except EngineUnavailable:
            self.close()
            raise

    def reserve(self) -> None:
        """Give the store's data file space on the disk; EngineUnavailable if there is not enough.

        LMDB has made the file, without blocks, as long as the map.
        """
        descriptor = os.open(self.store / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
        try:
            kept = disk.keeps_reservations(disk.file_system(self.store))
            self.reserved = disk.reserve(descriptor, self.map_bytes) and kept
        except OSError as error:
            raise unavailable(self.path, error) from error
        finally:
            os.close(descriptor)

    def opened(self) -> None:
        """Note that the store is whole, and let others open it."""
        try:
            if self._alone:
                self._write_marker(ready=True)
                self._lock("using.lock", fcntl.LOCK_SH, 1.0)
        except OSError as error:
            raise unavailable(self.path, error) from error
        self._unlock("opening.lock")

    def wipe(self) -> bool:
        """Remove the store, if no other process uses it."""
        if self._alone:
            shutil.rmtree(self.store, ignore_errors=True)
            self.store.mkdir(0o700)
        return self._alone

    def close(self) -> None:
        """Give up the locks."""
        for name in list(self._files):
            self._unlock(name)

    def _lock(self, name: str, kind: int, patience: float) -> bool:
        if name not in self._files:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._files[name] = os.open(self.path / name, flags, 0o600)
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._files[name], kind | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= until:
                    break
                time.sleep(0.01)
        if patience:
            raise EngineUnavailable(
                f"{self.path}: another process has held {name} for {patience:g} s"
            )
        return False

    def _unlock(self, name: str) -> None:
        descriptor = self._files.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def _make(self) -> None:
        if not self.path.parent.is_dir():
            raise EngineUnavailable(
                f"{self.path.parent} does not exist: is the disk mounted? (only the last folder of "
                "'path' is made)"
            )
        try:
            self.path.mkdir(0o700)
        except FileExistsError:
            if not self.path.is_dir():
                raise EngineUnavailable(f"{self.path} is in the way: not a folder") from None
        known = {
            "format.json",
            "format.tmp",
            "hash-seed",
            "lost+found",
            "opening.lock",
            "store",
            "using.lock",
        }
        strangers = sorted(set(os.listdir(self.path)) - known)
        if strangers and not (self.path / "format.json").exists():
            raise EngineUnavailable(
                f"{self.path} holds other files ({strangers[0]}): name an empty folder"
            )
        if os.stat(self.path).st_uid != os.geteuid():
            raise EngineUnavailable(f"{self.path} belongs to another user")
        if disk.is_remote(kind := disk.file_system(self.path)):
            raise EngineUnavailable(
                f"{self.path} is on a network file system ({kind}): use a local disk"
            )
        os.chmod(self.path, 0o700)

    def _marker_text(self) -> str | None:
        try:
            return (self.path / "format.json").read_text()
        except FileNotFoundError:
            return None

    def _marker(self) -> dict[str, Any] | None:
        """What format.json says; None if there is none."""
        raw = self._marker_text()
        if raw is None:
            return None
        try:
            marker = json.loads(raw)
            if isinstance(marker["format"], int) and isinstance(marker["map_bytes"], int):
                return dict(marker)
        except (ValueError, KeyError, TypeError):
            pass
        raise EngineUnavailable(
            f"{self.path}/format.json is not ours: name an empty folder, or empty this one"
        )

    def _check_alone(self, marker: dict[str, Any] | None) -> None:
        if marker is None:
            why = "it is new"
        elif marker["format"] > FORMAT:
            raise EngineUnavailable(
                f"{self.path} was written by a newer version (format {marker['format']}, "
                f"known {FORMAT}): name another folder, or empty this one"
            )
        elif marker["format"] < FORMAT or marker.get("lmdb") != self._lmdb_version:
            why = "it was written by another version"
        elif marker.get("boot_id") != boot_id():
            why = "the machine was restarted since"
        elif not marker.get("ready"):
            why = "its making was interrupted"
        elif marker.get("wanted_bytes") != self._wanted:
            why = "'gib' was changed"
        elif (
            not self._has_file("data.mdb")
            or (self.store / "data.mdb").stat().st_size < marker["map_bytes"]
        ):
            why = "its data file was cut"
        else:
            self.map_bytes = marker["map_bytes"]
            return
        level = logging.DEBUG if marker is None else logging.INFO
        logger.log(level, "L3 cache: %s starts empty: %s", self.path, why)
        shutil.rmtree(self.store, ignore_errors=True)
        self.map_bytes = self._affordable(self._wanted)
        self._write_marker(ready=False)
        self.store.mkdir(0o700)

    def _check_shared(self, marker: dict[str, Any] | None) -> None:
        expected = {"format": FORMAT, "lmdb": self._lmdb_version, "boot_id": boot_id()}
        if marker is None or any(marker.get(key) != value for key, value in expected.items()):
            raise EngineUnavailable(
                f"{self.path} is in use by another version of this software or another machine"
            )
        self.map_bytes = marker["map_bytes"]  # one size for all, whatever each was told

    def _affordable(self, wanted: int) -> int:
        """`wanted`, or what the disk has if that is less, leaving it a twentieth."""
        room = disk.free_bytes(self.path) - disk.total_bytes(self.path) // 20 - _MARGIN
        if wanted <= room:
            return wanted
        room -= room % (1 << 20)
        if room < MIN_BYTES:
            raise EngineUnavailable(
                f"{self.path}: the disk is full ({max(room, 0) >> 20} MiB to spare, "
                f"at least {MIN_BYTES >> 20} needed)"
            )
        logger.warning(
            "L3 cache: %s gets %.2f GiB instead of %.2f: the disk has no more to spare",
            self.path,
            room / 2**30,
            wanted / 2**30,
        )
        return room

    def _write_marker(self, ready: bool) -> None:
        text = json.dumps(
            {
                "format": FORMAT,
                "lmdb": self._lmdb_version,
                "boot_id": boot_id(),
                "map_bytes": self.map_bytes,
                "wanted_bytes": self._wanted,
                "ready": ready,
            }
        )
        if self._marker_text() == text:  # so that an unchanged store opens on a full disk
            return
        new = self.path / "format.tmp"
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path / "format.json")

    def _has_file(self, name: str) -> bool:
        return (self.store / name).is_file()


def unavailable(path: Path, error: OSError) -> EngineUnavailable:
    """What to tell of an OSError on a folder."""
    hints = {
        errno.EROFS: "; the file system is read-only",
        errno.EACCES: "; this user may not write there",
        errno.EFBIG: "; the process may not write files that large (ulimit -f)",
        errno.ENOSPC: "; the disk is full: make room or lower 'gib'",
        errno.EDQUOT: "; the quota is used up: lower 'gib'",
    }
    hint = hints.get(error.errno or 0, "")
    return EngineUnavailable(f"{path} cannot be used: {error.strerror or error}{hint}")
