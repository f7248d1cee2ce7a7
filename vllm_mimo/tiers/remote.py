"""L3 as the scheduler sees it: what a waiting request could take from there, and what goes there.

A request is looked up when it is queued. If L3 lets it resume further on, and reading takes less
time than computing, host blocks are reserved and the workers read into them while the request
waits; it holds no device blocks meanwhile. What arrives is cached in host memory like any other
block. Nothing here does IO: look-ups run on the client's threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vllm_mimo.l3.keys import Label as Owner
from vllm_mimo.tiers.moves import TierMoves
from vllm_mimo.tiers.remote_query import Query, RemoteLookup
from vllm_mimo.tiers.remote_reads import RemoteReads
from vllm_mimo.tiers.remote_writes import RemoteWrites

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_mimo.kv.manager import MimoKVCacheManager
    from vllm_mimo.kv.resume import Resume
    from vllm_mimo.l3.client import L3Client
    from vllm_mimo.tiers.host_pool import HostPool
    from vllm_mimo.tiers.stores import Store

TENANT, PREFIX = "mimo_tenant", "mimo_prefix"
"""Keys of a request's `kv_transfer_params`: whose KV it is, and what its session shares."""

_BEGIN = 4
"""Reads that are begun in a step: each costs a look-up."""

_PATIENCE_S = 0.002
"""A step without work waits so long for a look-up, rather than spin."""


class RemoteTier:
    """The tier below host memory.

    Args:
        client: of rank 0, for look-ups only.
        block_bytes: of a rank's host block, for each group.
        choose: (request, keys known to be in L3) -> the resume that all tiers allow.
        op: a new operation's number, which all workers are to report.
        keep_alive: whether hits above are marked as used in L3.
    """

    def __init__(
        self,
        client: L3Client,
        manager: MimoKVCacheManager,
        hosts: tuple[HostPool, HostPool],
        block_bytes: tuple[int, int],
        choose: Callable[[Request, frozenset[bytes]], Resume],
        op: Callable[[], int],
        keep_alive: bool = True,
    ) -> None:
        self.client = client
        self.hosts = hosts
        self.lookup = RemoteLookup(client, manager, hosts)
        self.reads = RemoteReads(manager, hosts, block_bytes, client.settings.wait_s, choose, op)
        seconds = client.settings.keep_alive_s if keep_alive else None
        self.writes = RemoteWrites(manager, hosts, seconds, op)
        self.queries: dict[str, Query] = {}
        self.secret = ""
        """Part of the tenant since the weights were changed at run time: nobody else has it."""

    def owner(self, request: Request) -> Owner | None:
        """Whose a request's blocks are; None for those that are not kept in L3.

        Adapters are known to the block hash by name only, which another release may reuse.
        """
        if request.lora_request is not None:
            return None
        chosen = request.kv_transfer_params or {}
        tenant = str(chosen.get(TENANT) or self.client.settings.tenant)
        return Owner(tenant + self.secret, str(chosen.get(PREFIX) or ""))

    def request_added(self, request: Request) -> None:
        """Ask L3 for what upper tiers lack of a new request's prefix."""
        owner = self.owner(request)
        if owner is None or request.skip_reading_prefix_cache or request.request_id in self.queries:
            return
        self.queries[request.request_id] = self.lookup.start(request, owner)

    def must_wait(self, request: Request, upper: int, tokens_per_s: float) -> bool:
        """See `RemoteReads.must_wait`."""
        query = self.queries.get(request.request_id)
        return query is not None and self.reads.must_wait(query, upper, tokens_per_s)

    def request_gone(self, request_id: str) -> None:
        """A request was admitted, or is not wanted any more."""
        query = self.queries.pop(request_id, None)
        if query is not None:
            query.settled = True
            self.reads.unpin(query)

    def taken(self, request: Request, resume: Resume) -> None:
        """A request was admitted with this resume."""
        self.request_gone(request.request_id)
        owner = self.owner(request)
        if owner is not None:
            self.writes.keep_alive(request, resume, owner)

    def stored(self, stores: Sequence[Store]) -> None:
        """Blocks have come to host memory."""
        self.writes.spill(stores)

    def build(self, moves: TierMoves, tokens_per_s: float) -> None:
        """Add this step's reads, writes and marks."""
        for query in self.queries.values():
            if query.looked_up and query.absent:
                self.writes.lost(query.absent)
                query.absent = []
        self._begin_queued(tokens_per_s)
        moves.fetches, self.reads.moves = self.reads.moves, []
        moves.spills, self.writes.moves = self.writes.moves, []
        moves.touches, self.writes.touches = self.writes.touches, []
        if not moves.forward and any(not q.looked_up for q in self.queries.values()):
            self.lookup.answered.wait(_PATIENCE_S)
        self.lookup.answered.clear()

    def _begin_queued(self, tokens_per_s: float) -> None:
        """Begin to read for requests that are still far from being admitted."""
        begun = 0
        for query in self.queries.values():
            if begun >= _BEGIN:
                break
            if query.looked_up and query.fetch is None and not query.settled:
                begun += 1
                upper = self.reads.choose(query.request, frozenset()).start
                self.reads.begin(query, upper, tokens_per_s)

    def finish(self, op: int, failed: set[int]) -> bool:
        """All workers have ended an operation, if it is one of L3's; whether it is."""
        if op in self.writes.spills:
            self.writes.finish(op, failed)
        elif op in self.reads.under_way:
            arrived, lost = self.reads.finish(op, failed)
            self.writes.remember(arrived)
            self.writes.lost(lost)
        else:
            return False
        return True

    def forget(self) -> None:
        """The weights have changed: neither read nor write what others may take for theirs."""
        self.secret = f" {secrets.token_hex(16)}"
        self.reads.generation += 1
        self.writes.forget()
        for query in self.queries.values():
            query.settled = True

    def close(self) -> None:
        """Close the client."""
        self.client.close()
