"""Counters that an engine process writes and an API process reads, in a small shared file.

vLLM carries no figures of plugins from the engine to the API process. The file holds one line of
JSON, which names the writer and the counters, then a float64 for each.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import mmap
import os
import struct
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

INSTANCE_VARIABLE = "VLLM_MIMO_INSTANCE"
"""Names one server among others of the machine; set before it starts its processes, which inherit
it (`name_instance`). Each of them has a VllmConfig of its own, and so an id of its own in it."""

_HEADER = 4096
"""Bytes before the counters."""


def folder() -> Path:
    """Where boards are: memory, or the temporary folder where there is none to share."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def name_instance() -> None:
    """Give this process and those that it starts a name in common, once."""
    os.environ.setdefault(INSTANCE_VARIABLE, f"{os.getpid()}-{uuid.uuid4().hex[:8]}")


def board_path(engine: int = 0) -> Path:
    """The file of one engine of this instance, of this user."""
    instance = os.environ.get(INSTANCE_VARIABLE, str(os.getpid()))
    return folder() / f"vllm-mimo-{os.getuid()}-{instance}-{engine}"


class BoardWriter:
    """Counters of this process, gone when it ends.

    Boards that a killed process left behind are removed when the next one is made.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        remove_orphans()
        self.path = path
        header = json.dumps({"pid": os.getpid(), "names": list(names)}).encode()
        assert len(header) < _HEADER
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, _HEADER + 8 * len(names))
            self.memory = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self.memory[: len(header) + 1] = header + b"\n"
        self.places = {name: _HEADER + 8 * i for i, name in enumerate(names)}
        self.values = dict.fromkeys(names, 0.0)
        atexit.register(self.close)

    def add(self, name: str, amount: float = 1.0) -> None:
        """Raise one counter."""
        self.values[name] += amount
        struct.pack_into("<d", self.memory, self.places[name], self.values[name])

    def close(self) -> None:
        """Remove the file. A reader that has it open keeps the last values."""
        self.path.unlink(missing_ok=True)


def read_board(path: Path) -> dict[str, float]:
    """Counters by name; none where there is no board (yet)."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}
    if len(content) <= _HEADER:
        return {}
    try:
        names = json.loads(content[:_HEADER].partition(b"\n")[0])["names"]
    except (ValueError, LookupError):
        return {}
    return dict(zip(names, struct.unpack_from(f"<{len(names)}d", content, _HEADER), strict=True))


def remove_orphans() -> None:
    """Remove this user's boards whose writers are gone."""
    for path in folder().glob(f"vllm-mimo-{os.getuid()}-*"):
        with contextlib.suppress(OSError, ValueError, LookupError):
            writer = json.loads(path.read_bytes()[:_HEADER].partition(b"\n")[0])["pid"]
            try:
                os.kill(writer, 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
