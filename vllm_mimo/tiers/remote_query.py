"""Asks L3 what a new request could take from it. Answers come on the client's threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.l3.keys import Label as Owner
from vllm_mimo.l3.outcome import HIT, MissCause

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.kv.manager import MimoKVCacheManager
    from vllm_mimo.l3.client import L3Client
    from vllm_mimo.l3.transfer import Transfer
    from vllm_mimo.tiers.host_pool import HostPool
    from vllm_mimo.tiers.remote_reads import Fetch


@dataclass(slots=True)
class Query:
    """What is known about one waiting request."""

    request: Request
    owner: Owner
    deadline: float | None = None
    """When the request waits no longer; counted from when it could have been admitted."""
    looked_up: bool = False
    known: frozenset[bytes] = frozenset()
    """Keys, with group, that L3 said it holds."""
    absent: list[bytes] = field(default_factory=list)
    """Keys that it does not hold."""
    fetch: Fetch | None = None
    """The read of what the request takes."""
    pinned: list[tuple[int, KVCacheBlock]] = field(default_factory=list)
    """(group, host block) that is kept for it."""
    settled: bool = False
    """Whether the request waits no longer."""


class RemoteLookup:
    """Looks up the blocks of new requests that upper tiers lack.

    Args:
        client: of rank 0, which stands for all.
        manager, hosts: the tiers above.
    """

    def __init__(
        self,
        client: L3Client,
        manager: MimoKVCacheManager,
        hosts: tuple[HostPool, HostPool],
    ) -> None:
        self.client = client
        self.manager = manager
        self.hosts = hosts
        self.answered = threading.Event()
        """Set when a look-up has ended."""

    def start(self, request: Request, owner: Owner) -> Query:
        """Ask how far a prefix goes, then for the tails near its end."""
        manager = self.manager.full
        hashes = manager.block_hashes(request.block_hashes)
        most = (request.num_tokens - 1) // manager.block_size
        held = 0
        while held < min(most, len(hashes)) and self._held(FULL_GROUP, hashes[held]):
            held += 1
        keys = [(FULL_GROUP, bytes(h)) for h in hashes[held:most]]
        query = Query(request, owner)
        if keys:
            transfer = self.client.exists(owner, keys)
            chain = list(request.block_hashes)
            transfer.statuses.add_done_callback(
                lambda _: self._full_known(query, chain, held, keys, transfer)
            )
        else:
            self._ask_for_tails(query, request.block_hashes, held, frozenset())
        return query

    def _held(self, group: int, block_hash: bytes) -> bool:
        manager = (self.manager.full, self.manager.window)[group]
        key = block_hash + manager.key_end
        return manager.cached(key) is not None or self.hosts[group].find(key) is not None

    def _full_known(
        self,
        query: Query,
        hashes: Sequence[Any],
        held: int,
        keys: list[tuple[int, bytes]],
        transfer: Transfer,
    ) -> None:
        """On a client's thread: how far the prefix goes; ask for the tails near its end."""
        outcomes = transfer.statuses.result()
        found = 0
        while found < len(outcomes) and outcomes[found] is HIT:
            found += 1
        end = self.manager.full.key_end
        query.absent = [
            key + end for (_, key), o in zip(keys, outcomes, strict=True) if o is MissCause.ABSENT
        ]
        known = frozenset(key + end for _, key in keys[:found])
        self._ask_for_tails(query, hashes, held + found, known)

    def _ask_for_tails(
        self, query: Query, hashes: Sequence[Any], blocks: int, known: frozenset[bytes]
    ) -> None:
        window = self.manager.window
        tokens = blocks * self.manager.full.block_size
        last = tokens // window.block_size
        bound = self.manager.rule.replay_bound + window.rule.blocks * window.block_size
        first = max(0, (tokens - bound) // window.block_size)
        wanted = window.block_hashes(hashes)[first:last]
        keys = [(WINDOW_GROUP, bytes(h)) for h in wanted]
        if not keys:
            self._answer(query, known)
            return
        transfer = self.client.exists(query.owner, keys)

        def end(_: object) -> None:
            outcomes = transfer.statuses.result()
            tails = {
                key + window.key_end
                for (_, key), outcome in zip(keys, outcomes, strict=True)
                if outcome is HIT
            }
            self._answer(query, known | tails)

        transfer.statuses.add_done_callback(end)

    def _answer(self, query: Query, known: frozenset[bytes]) -> None:
        query.known = known
        query.looked_up = True
        self.answered.set()
