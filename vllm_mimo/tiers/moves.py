"""What the scheduler tells the workers to move in a step, and what they report back."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

Pairs = list[tuple[int, int]]
"""(source block, target block) of each copy."""


@dataclass(slots=True)
class Copies:
    """Block copies of both kinds of KV, all layers of each block."""

    full: Pairs = field(default_factory=list)
    window: Pairs = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.full or self.window)

    def of(self, group: int) -> Pairs:
        """The copies of one KV cache group."""
        return self.window if group else self.full


@dataclass(slots=True)
class RemoteMove:
    """Values to read from L3 into host blocks, or to write there from them."""

    op: int
    tenant: str
    prefix: str
    """Label that places the values, the same when they are written and read."""
    group: int
    blocks: list[tuple[int, bytes]]
    """(host block, block hash without group id)."""


@dataclass(slots=True)
class TierMoves(KVConnectorMetadata):
    """One step's moves."""

    forward: bool = True
    """Whether the model runs in this step."""
    loads: Copies = field(default_factory=Copies)
    """Host to device, each layer before its attention reads it."""
    stores: Copies = field(default_factory=Copies)
    """Device to host, each layer after the step has written it."""
    rescues: Copies = field(default_factory=Copies)
    """Device to host, each layer before the step overwrites the block."""
    ahead: Copies = field(default_factory=Copies)
    """Host to device, for the next step: each layer before that step's attention reads it."""
    load_op: int | None = None
    """Names loads in the report."""
    ahead_op: int | None = None
    """Names what is loaded ahead."""
    store_op: int | None = None
    """Names stores and rescues."""
    fetches: list[RemoteMove] = field(default_factory=list)
    """L3 to host memory."""
    spills: list[RemoteMove] = field(default_factory=list)
    """Host memory to L3."""
    touches: list[RemoteMove] = field(default_factory=list)
    """To be marked as used in L3; nobody waits for it, and no host blocks are meant."""

    def __bool__(self) -> bool:
        parts = (self.loads, self.ahead, self.stores, self.rescues, self.fetches, self.spills)
        return any(parts)


@dataclass(slots=True)
class TierReport(KVConnectorWorkerMetadata):
    """What one worker, or all of them, have finished since the last report."""

    done: dict[int, int] = field(default_factory=dict)
    """Operation -> workers that have finished it."""
    failed: dict[int, set[int]] = field(default_factory=dict)
    """Operation -> indexes of its blocks that some worker could not move."""
    figures: dict[str, float] = field(default_factory=dict)
    """Sums over the workers: bytes and seconds by name (`vllm_mimo.scheduling.tier_figures`)."""

    def __bool__(self) -> bool:
        return bool(self.done or self.figures)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> TierReport:
        assert isinstance(other, TierReport)
        for op, workers in other.done.items():
            self.done[op] = self.done.get(op, 0) + workers
        for op, blocks in other.failed.items():
            self.failed.setdefault(op, set()).update(blocks)
        for name, value in other.figures.items():
            self.figures[name] = self.figures.get(name, 0.0) + value
        return self
