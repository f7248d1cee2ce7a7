"""Moves blocks in one worker: what the scheduler asked for, in the order that a step needs it.

Of each layer, in the order of the step: what is about to be overwritten is copied out, then
blocks are loaded. Layer i's attention waits for the loads of layer i. The write to a layer comes
before its attention and waits for the copies out of it, and for what was loaded ahead into blocks
that were given away since. New blocks of a layer go out once it has run.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.tiers.copies import DONE, CopyQueue, Ticket
from vllm_mimo.tiers.l3_io import L3Mover
from vllm_mimo.tiers.moves import Copies, TierMoves, TierReport
from vllm_mimo.tiers.regions import TierRegions

_PATIENCE_S = 0.002
"""A step without work waits so long for a read from L3, rather than spin."""

_GROUPS = (FULL_GROUP, WINDOW_GROUP)

Pairs = tuple[torch.Tensor | None, torch.Tensor | None]
"""For each group, (copies, 2) int64."""


class TierMover:
    """The copies of a worker between its device and host memory.

    Args:
        regions: where blocks lie.
        inbound: queue of loads and rescues.
        outbound: queue of stores.
        layerwise: whether layers wait for their own loads only.
        remote: moves between host memory and L3, where there is one.
    """

    def __init__(
        self,
        regions: TierRegions,
        inbound: CopyQueue,
        outbound: CopyQueue,
        layerwise: bool = True,
        remote: L3Mover | None = None,
    ) -> None:
        self.remote = remote
        self.regions = regions
        self.inbound = inbound
        self.outbound = outbound
        self.layerwise = layerwise
        self.index = {region.name: i for i, region in enumerate(regions.layers)}
        self.moves = TierMoves()
        self.waits: list[list[Ticket]] = [[] for _ in regions.layers]
        """For each layer, what its attention waits for."""
        self.writes: list[list[Ticket]] = [[] for _ in regions.layers]
        """For each layer, what the write to it waits for."""
        self._ahead: list[Ticket] = []
        self._fence: Ticket = DONE
        self._stores: Pairs = (None, None)
        self._saved: set[int] = set()
        self._rescued: Ticket = DONE
        self._open: list[tuple[int, tuple[Ticket, ...]]] = []
        """Operations under way."""
        self.figures: dict[str, float] = defaultdict(float)
        self._busy = 0.0

    # --- moments of a step -----------------------------------------------------------------------

    def start(self, moves: TierMoves) -> None:
        """Before a step is prepared."""
        self.moves = moves
        if self.remote is not None:
            self.remote.start(moves.fetches, moves.spills, moves.touches)
        self._wait(self._fence)
        self.inbound.after(self._fence)
        self._fence = DONE
        self.waits = [[] for _ in self.regions.layers]
        self.writes = [[ticket] for ticket in self._ahead] or [[] for _ in self.regions.layers]
        self._ahead = []
        self._saved.clear()
        self._stores = self._pairs(moves.stores)
        if moves.rescues:
            self.inbound.after_compute()
        if moves.rescues or moves.loads:
            rescues, loads = self._pairs(moves.rescues), self._pairs(moves.loads)
            for layer, waits in enumerate(self.waits):
                if moves.rescues:
                    self._copy_out(self.inbound, layer, rescues)
                    self.writes[layer].append(self.inbound.ticket())
                if moves.loads:
                    self._copy_in(layer, loads)
                    waits.append(self.inbound.ticket())
        if moves.load_op is not None:
            self._open.append((moves.load_op, (self.inbound.ticket(),)))
        self._rescued = self.inbound.ticket() if moves.rescues else DONE
        if moves.ahead:
            ahead = self._pairs(moves.ahead)
            for layer in range(len(self.waits)):
                self._copy_in(layer, ahead)
                self._ahead.append(self.inbound.ticket())
            assert moves.ahead_op is not None
            self._open.append((moves.ahead_op, (self._ahead[-1],)))
        if self.writes:
            self._wait_all(self.writes[0])
        if not self.layerwise and moves.forward:
            for waits in self.waits:
                self._wait_all(waits)

    def layer_load(self, name: str) -> None:
        """Before a layer's attention: its KV is written, its cached KV not yet read."""
        layer = self.index.get(name)
        if layer is None:
            return
        self._wait_all(self.waits[layer])
        if layer + 1 < len(self.writes):
            self._wait_all(self.writes[layer + 1])

    def layer_save(self, name: str) -> None:
        """After a layer's attention."""
        layer = self.index.get(name)
        if layer is not None and self.moves.stores and layer not in self._saved:
            self.outbound.after_compute()
            self._save(layer)

    def end(self) -> None:
        """After the step was launched."""
        moves = self.moves
        for waits in (*self.waits, *self.writes):
            self._wait_all(waits)  # layers that did not run
        if moves.stores:
            left = [i for i in range(len(self.regions.layers)) if i not in self._saved]
            if left:
                self.outbound.after_compute()
            for layer in left:
                self._save(layer)
            self._fence = self.outbound.ticket()
        if moves.store_op is not None:
            self._open.append((moves.store_op, (self._fence, self._rescued)))
        if not moves.forward:
            for _, tickets in self._open:
                for ticket in tickets:
                    ticket.join()
            if self.remote is not None:
                self.remote.idle(_PATIENCE_S)
        self.moves = TierMoves()

    def report(self) -> TierReport:
        """What was finished since the last report."""
        busy = self.inbound.busy_s
        self.figures["load_s"] += busy - self._busy
        self._busy = busy
        if self.remote is not None:
            for name, size in zip(("l3_read", "l3_written"), self.remote.take_bytes(), strict=True):
                self.figures[name] += size
        report = TierReport(figures={name: value for name, value in self.figures.items() if value})
        self.figures.clear()
        still_open = []
        for op, tickets in self._open:
            if all(ticket.finished() for ticket in tickets):
                report.done[op] = 1
            else:
                still_open.append((op, tickets))
        self._open = still_open
        if self.remote is not None:
            for op, failed in self.remote.take().items():
                report.done[op] = 1
                if failed:
                    report.failed[op] = failed
        return report

    def close(self) -> None:
        """Finish what was begun."""
        if self.remote is not None:
            self.remote.close()
        self.inbound.close()
        self.outbound.close()

    # --- copies ----------------------------------------------------------------------------------

    def _pairs(self, copies: Copies) -> Pairs:
        full, window = (
            torch.tensor(copies.of(group), dtype=torch.int64) if copies.of(group) else None
            for group in _GROUPS
        )
        return full, window

    def _copy_in(self, layer: int, pairs: Pairs) -> None:
        region = self.regions.layers[layer]
        own = pairs[region.group]
        if own is not None:
            self.inbound.copy(region.device, region.host, own)
            self.figures[f"host_loaded_bytes_{region.group}"] += len(own) * region.host.block_bytes

    def _copy_out(self, queue: CopyQueue, layer: int, pairs: Pairs) -> None:
        region = self.regions.layers[layer]
        own = pairs[region.group]
        if own is not None:
            queue.copy(region.host, region.device, own)
            self.figures[f"host_stored_bytes_{region.group}"] += len(own) * region.host.block_bytes

    def _save(self, layer: int) -> None:
        self._copy_out(self.outbound, layer, self._stores)
        self._saved.add(layer)

    def _wait(self, ticket: Ticket) -> None:
        self.figures["exposed_s"] += ticket.order()

    def _wait_all(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._wait(ticket)
        tickets.clear()
