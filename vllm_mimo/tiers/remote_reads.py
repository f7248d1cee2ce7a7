"""Reads from L3 into host memory for waiting requests, where that is quicker than computing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_mimo.kv.below import HostHit, RemoteHit
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.tiers.moves import RemoteMove
from vllm_mimo.tiers.remote_query import Query

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.kv.manager import MimoKVCacheManager
    from vllm_mimo.kv.resume import Resume
    from vllm_mimo.tiers.host_pool import HostPool

Entries = list[tuple[bytes, "KVCacheBlock", int]]
"""(key with group, host block, tokens up to its end)."""


@dataclass(slots=True)
class Fetch:
    """Blocks that are being read for one request."""

    started: float
    size: int
    """Bytes of a rank."""
    generation: int
    groups: dict[int, tuple[int, Entries]] = field(default_factory=dict)
    """Operation -> (group, blocks) that have not arrived."""


@dataclass(slots=True)
class ReadCounts:
    """Since the start."""

    requests: int = 0
    blocks: int = 0
    failed_blocks: int = 0
    recomputed_requests: int = 0
    """Computed because reading would have taken longer."""
    timeouts: int = 0
    """Requests that went on without L3 at their deadline."""


class RemoteReads:
    """What is read, and for whom.

    Args:
        block_bytes: of a rank's host block, for each group.
        choose: (request, keys known to be in L3) -> the resume that all tiers allow.
        op: a new operation's number, which all workers are to report.
        wait_s: how long a request that could be admitted waits.
    """

    def __init__(
        self,
        manager: MimoKVCacheManager,
        hosts: tuple[HostPool, HostPool],
        block_bytes: tuple[int, int],
        wait_s: float,
        choose: Callable[[Request, frozenset[bytes]], Resume],
        op: Callable[[], int],
    ) -> None:
        self.manager = manager
        self.hosts = hosts
        self.block_bytes = block_bytes
        self.wait_s = wait_s
        self.choose = choose
        self.op = op
        self.counts = ReadCounts()
        self.under_way: dict[int, Fetch] = {}
        """By operation."""
        self.keys: set[bytes] = set()
        """Of all that is under way."""
        self.moves: list[RemoteMove] = []
        """For the next step."""
        self.bytes_per_s = 0.0
        """Of a rank's reads; 0 before the first."""
        self.generation = 0
        """Raised when caches are dropped."""

    def must_wait(self, query: Query, upper: int, tokens_per_s: float) -> bool:
        """Whether a request, which could be admitted now, is to wait for L3.

        Args:
            upper: token at which upper tiers let it resume.
            tokens_per_s: that steps compute; 0 where nobody knows.
        """
        if query.settled:
            return False
        if query.fetch is not None and not query.fetch.groups:
            query.settled = True
            return False
        now = time.monotonic()
        if query.deadline is None:
            query.deadline = now + self.wait_s
        elif now >= query.deadline:
            self.counts.timeouts += 1
            query.settled = True
            return False
        if not query.looked_up:
            return True
        if query.fetch is None:
            query.settled = not self.begin(query, upper, tokens_per_s)
            return not query.settled
        return True

    def begin(self, query: Query, upper: int, tokens_per_s: float) -> bool:
        """Begin to read what lets a request resume further on; whether it is to wait for that."""
        resume = self.choose(query.request, query.known)
        missing = [
            [(i, b) for i, b in enumerate(blocks) if type(b) is RemoteHit]
            for blocks in (resume.full, resume.tail)
        ]
        if resume.start <= upper or not any(missing):
            query.settled = True
            return False
        if any(b.key in self.keys for blocks in missing for _, b in blocks):
            return True  # another request reads it
        size = sum(len(blocks) * own for blocks, own in zip(missing, self.block_bytes, strict=True))
        rates_known = tokens_per_s and self.bytes_per_s
        if rates_known and size / self.bytes_per_s > (resume.start - upper) / tokens_per_s:
            self.counts.recomputed_requests += 1
            query.settled = True
            return False
        self._pin(query, resume)
        taken = [self.hosts[g].take(len(missing[g])) for g in (FULL_GROUP, WINDOW_GROUP)]
        if taken[0] is None or taken[1] is None:
            for group, blocks in enumerate(taken):
                self.hosts[group].release(blocks or [])
            self.unpin(query)
            return False  # there may be room later
        self._read(query, resume, missing, taken, Fetch(time.monotonic(), size, self.generation))
        self.counts.requests += 1
        return True

    def _read(
        self,
        query: Query,
        resume: Resume,
        missing: list[list[tuple[int, RemoteHit]]],
        taken: list[Any],
        fetch: Fetch,
    ) -> None:
        sizes = (self.manager.full.block_size, self.manager.window.block_size)
        query.fetch = fetch
        firsts = (0, resume.start // sizes[1] - len(resume.tail))
        for group in (FULL_GROUP, WINDOW_GROUP):
            entries = [
                (hit.key, block, (firsts[group] + index + 1) * sizes[group])
                for (index, hit), block in zip(missing[group], taken[group], strict=True)
            ]
            if not entries:
                continue
            op = self.op()
            fetch.groups[op] = (group, entries)
            self.under_way[op] = fetch
            self.keys.update(key for key, _, _ in entries)
            blocks = [(block.block_id, key[:-4]) for key, block, _ in entries]
            owner = query.owner
            self.moves.append(RemoteMove(op, owner.tenant, owner.prefix, group, blocks))
            for _, block, _ in entries:
                query.pinned.append((group, block))
                block.ref_cnt += 1

    def _pin(self, query: Query, resume: Resume) -> None:
        for group, blocks in enumerate((resume.full, resume.tail)):
            held = [b.block for b in blocks if type(b) is HostHit]
            self.hosts[group].touch(held)
            query.pinned += [(group, block) for block in held]

    def unpin(self, query: Query) -> None:
        """Keep nothing for a request any more."""
        for group in (FULL_GROUP, WINDOW_GROUP):  # in the order of the chain: its end goes first
            self.hosts[group].release([block for own, block in query.pinned if own == group])
        query.pinned = []

    def finish(self, op: int, failed: set[int]) -> tuple[list[bytes], list[bytes]]:
        """All workers have ended a read.

        Returns the keys that are in host memory now, and those that could not be read.
        """
        fetch = self.under_way.pop(op)
        group, entries = fetch.groups.pop(op)
        host = self.hosts[group]
        arrived: list[bytes] = []
        for index, (key, block, tokens) in enumerate(entries):
            self.keys.discard(key)
            if index not in failed and fetch.generation == self.generation:
                host.publish(block, key, tokens)
                arrived.append(key)
        self.counts.blocks += len(arrived)
        self.counts.failed_blocks += len(failed)
        host.release([block for _, block, _ in entries])
        if not fetch.groups and not failed:
            rate = fetch.size / max(1e-6, time.monotonic() - fetch.started)
            self.bytes_per_s = rate if not self.bytes_per_s else 0.8 * self.bytes_per_s + 0.2 * rate
        return arrived, [entries[index][0] for index in sorted(failed)]
