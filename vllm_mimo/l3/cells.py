"""The engines a client uses, one a cell of the topology, and which of them a label belongs to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from vllm_mimo.l3.breaker import Breaker
from vllm_mimo.l3.directory import Directory, Placement, Topology
from vllm_mimo.l3.engine import EngineUnavailable, KVEngine
from vllm_mimo.l3.keys import Label

logger = logging.getLogger("vllm.vllm_mimo")

RETRY_SECONDS = 10.0
"""A cell that could not be opened is tried again after so long."""

Warn = Callable[[str, object, str], None]
"""Told of a failure: what was tried, the error, the cell's name."""

Factory = Callable[[str], KVEngine]
"""Makes the engine of a cell by its name; EngineUnavailable."""


class Cell:
    """An engine with a breaker for each direction: one that takes no puts may still serve gets."""

    def __init__(self, name: str, engine: KVEngine, breaker_s: float) -> None:
        self.name, self.engine = name, engine
        self.reads, self.writes = Breaker(breaker_s), Breaker(breaker_s)


class Cells:
    """Keeps up with a directory. A cell that leaves keeps its engine: calls may be under way."""

    def __init__(
        self, directory: Directory, factory: Factory, breaker_s: float, warn: Warn
    ) -> None:
        self._factory, self._breaker_s, self._warn = factory, breaker_s, warn
        self._guard = threading.Lock()  # held while engines are opened, never to look one up
        self._cells: dict[str, Cell] = {}
        self._regions: list[memoryview] = []
        self._stop = threading.Event()
        self._placement = Placement(directory.current())
        failures = self._open(self._placement.topology)
        if failures and not self._cells:
            raise failures[0]
        directory.watch(self._changed)
        if failures:
            self._changed(self._placement.topology)

    def __iter__(self) -> Iterator[Cell]:
        return iter(list(self._cells.values()))

    def of(self, label: Label) -> Cell | None:
        """The cell of a label, None while it is not open."""
        try:
            return self._cells.get(self._placement.cell(label))
        except LookupError:
            return None

    def register(self, region: memoryview) -> None:
        """Tell all engines, those to come too, of memory that buffers will lie in."""
        with self._guard:
            self._regions.append(region)
            for cell in self:
                cell.engine.register(region)

    def close(self, seconds: float) -> None:
        """Close all engines, waiting for at most so long."""
        self._stop.set()
        threads = [
            threading.Thread(target=self._close_one, args=(cell,), name="l3-close", daemon=True)
            for cell in self
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds)

    def _close_one(self, cell: Cell) -> None:
        try:
            cell.engine.close()
        except Exception as error:
            self._warn("close", error, cell.name)

    def _changed(self, topology: Topology) -> None:
        threading.Thread(
            target=self._follow, args=(topology,), name="l3-cells", daemon=True
        ).start()

    def _follow(self, topology: Topology) -> None:
        """Open what is new, then use the topology; what does not open is tried again."""
        while not self._stop.is_set():
            failures = self._open(topology)
            if topology.epoch > self._placement.topology.epoch:
                self._placement = Placement(topology)
            if not failures or topology.epoch < self._placement.topology.epoch:
                return
            self._stop.wait(RETRY_SECONDS)

    def _open(self, topology: Topology) -> list[Exception]:
        failures: list[Exception] = []
        with self._guard:
            for name in topology.cells:
                if name in self._cells or self._stop.is_set():
                    continue
                try:
                    engine = self._factory(name)
                    for region in self._regions:
                        engine.register(region)
                    self._cells = {**self._cells, name: Cell(name, engine, self._breaker_s)}
                except EngineUnavailable as error:
                    failures.append(error)
                except Exception as error:
                    failures.append(EngineUnavailable(f"engine of cell {name!r}: {error!r}"))
        if self._cells:
            for failure in failures:
                self._warn("open", failure, "")
        return failures
