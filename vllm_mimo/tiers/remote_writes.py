"""Writes host blocks to L3, and marks there what upper tiers were asked for."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_mimo.kv.eviction import Label
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.l3.keys import Label as Owner
from vllm_mimo.tiers.moves import RemoteMove

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.kv.manager import MimoKVCacheManager
    from vllm_mimo.kv.resume import Resume
    from vllm_mimo.tiers.host_pool import HostPool
    from vllm_mimo.tiers.stores import Store

_REMEMBERED = 1 << 18
"""Keys that are known to be in L3, so that they are not written again."""
_CHAINS = 1 << 14
"""Chains of which it is known when they were last marked as used."""
_WAITING = 0.25
"""Share of the host's blocks that may wait for being written; more are dropped."""


@dataclass(slots=True)
class WriteCounts:
    """Blocks since the start."""

    written: int = 0
    dropped: int = 0
    """Not written: too many waited, or the engine failed."""
    keep_alives: int = 0
    """Marked as used."""


class RemoteWrites:
    """What goes to L3.

    Args:
        keep_alive_s: seconds between two marks of a chain; None for no marks.
        op: a new operation's number, which all workers are to report.
    """

    def __init__(
        self,
        manager: MimoKVCacheManager,
        hosts: tuple[HostPool, HostPool],
        keep_alive_s: float | None,
        op: Callable[[], int],
    ) -> None:
        self.manager = manager
        self.hosts = hosts
        self.keep_alive_s = keep_alive_s
        self.op = op
        self.counts = WriteCounts()
        self.spills: dict[int, list[tuple[int, KVCacheBlock, Label]]] = {}
        """Operation -> (group, block, label under which it is given back)."""
        self.spilling = 0
        self.stored: OrderedDict[bytes, None] = OrderedDict()
        self.touched: OrderedDict[bytes, float] = OrderedDict()
        self.moves: list[RemoteMove] = []
        self.touches: list[RemoteMove] = []

    def spill(self, stores: Sequence[Store]) -> None:
        """Write blocks that have come to host memory, and keep them there until it is done."""
        runs: dict[tuple[str, str, int], list[Store]] = {}
        for store in stores:
            assert store.target is not None
            if store.key in self.stored or store.target.block_hash != store.key:
                continue
            if store.owner is not None:
                owner = store.owner
                runs.setdefault((owner.tenant, owner.prefix, store.group), []).append(store)
        most = int(_WAITING * sum(host.num_gpu_blocks for host in self.hosts))
        for (tenant, prefix, group), run in runs.items():
            fitting = run[: max(0, most - self.spilling)]
            self.counts.dropped += len(run) - len(fitting)
            if not fitting:
                continue
            op = self.op()
            targets = [store.target for store in fitting if store.target is not None]
            self.hosts[group].touch(targets)
            self.spills[op] = [(group, t, s.label) for s, t in zip(fitting, targets, strict=True)]
            self.spilling += len(fitting)
            blocks = [(t.block_id, s.hash) for s, t in zip(fitting, targets, strict=True)]
            self.moves.append(RemoteMove(op, tenant, prefix, group, blocks))

    def finish(self, op: int, failed: set[int]) -> None:
        """All workers have ended a write."""
        blocks = self.spills.pop(op)
        self.spilling -= len(blocks)
        self.counts.written += len(blocks) - len(failed)
        self.counts.dropped += len(failed)
        for index, (group, block, label) in enumerate(blocks):
            key = block.block_hash
            if index not in failed and key is not None:
                self.remember([key])
            self.hosts[group].release([block], label)

    def remember(self, keys: Sequence[bytes]) -> None:
        """Keys that L3 holds."""
        for key in keys:
            self.stored[key] = None
        while len(self.stored) > _REMEMBERED:
            self.stored.popitem(last=False)

    def lost(self, keys: Sequence[bytes]) -> None:
        """Keys that L3 does not hold any more: they may be written again."""
        for key in keys:
            self.stored.pop(key, None)

    def forget(self) -> None:
        """Nothing is known to be in L3."""
        self.stored.clear()
        self.touched.clear()

    def keep_alive(self, request: Request, resume: Resume, owner: Owner) -> None:
        """Mark what a request took from upper tiers as used in L3 too, at most so often."""
        full = self.manager.full
        hashes = full.block_hashes(request.block_hashes)[: len(resume.full)]
        if not hashes or self.keep_alive_s is None:
            return
        now, last = time.monotonic(), bytes(hashes[-1])
        if now - self.touched.get(last, float("-inf")) < self.keep_alive_s:
            return
        self.touched[last] = now
        self.touched.move_to_end(last)
        while len(self.touched) > _CHAINS:
            self.touched.popitem(last=False)
        window = self.manager.window
        end = resume.start // window.block_size
        tail = window.block_hashes(request.block_hashes)[end - len(resume.tail) : end]
        for group, wanted in ((FULL_GROUP, hashes), (WINDOW_GROUP, tail)):
            if wanted:
                blocks = [(0, bytes(key)) for key in wanted]
                self.touches.append(RemoteMove(0, owner.tenant, owner.prefix, group, blocks))
                self.counts.keep_alives += len(blocks)
