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
from typing import TYPE_CHECKING, Any

from vllm_mimo.metrics.names import FIGURES

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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

    def set(self, name: str, value: float) -> None:
        """Write one figure."""
        self.values[name] = value
        struct.pack_into("<d", self.memory, self.places[name], value)

    def close(self) -> None:
        """Remove the file. A reader that has it open keeps the last values."""
        self.path.unlink(missing_ok=True)


_boards: dict[Path, BoardWriter] = {}


def engine_board(vllm_config: VllmConfig) -> BoardWriter:
    """The board of this process's engine, made once for all that write on it."""
    index = getattr(vllm_config.parallel_config, "data_parallel_index", 0) or 0
    path = board_path(index)
    if path not in _boards:
        _boards[path] = BoardWriter(path, FIGURES)
    return _boards[path]


class BoardReader:
    """A board of another process, mapped once. Get it from `open_board`."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.names: list[str] = _header(memory)["names"]
        self.format = f"<{len(self.names)}d"

    def values(self) -> dict[str, float]:
        """Counters by name, as they stand now; the last ones after the writer has ended."""
        counters = struct.unpack_from(self.format, self.memory, _HEADER)
        return dict(zip(self.names, counters, strict=True))


def open_board(path: Path) -> BoardReader | None:
    """The board at `path`; None where there is none (yet)."""
    try:
        with path.open("rb") as file:
            return BoardReader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, LookupError):
        return None


def read_board(path: Path) -> dict[str, float]:
    """Counters by name, once; none where there is no board."""
    board = open_board(path)
    return board.values() if board is not None else {}


def remove_orphans() -> None:
    """Remove this user's boards whose writers are gone."""
    for path in folder().glob(f"vllm-mimo-{os.getuid()}-*"):
        with contextlib.suppress(OSError, ValueError, LookupError):
            writer = _header(path.read_bytes())["pid"]
            try:
                os.kill(writer, 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)


def _header(content: bytes | mmap.mmap) -> dict[str, Any]:
    """What a board says of itself. Raises ValueError where it is none."""
    return json.loads(content[:_HEADER].partition(b"\n")[0])
