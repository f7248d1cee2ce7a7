"""Which of the device's blocks are copied to host memory, and when.

Every block that enters the prefix cache goes out in the step that computes it, or the next one if
its hash is known only then. One that is overwritten before that is rescued: copied before the step
that overwrites it writes that layer. Blocks that the device holds and the host lacks (it evicted
them, or had no room) go out later, a few in each step: backfill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

from vllm_mimo.kv.eviction import Label
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.l3.keys import Label as Owner

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.tiers.host_pool import HostPool
    from vllm_mimo.tiers.moves import TierMoves

Labels = Callable[["Request", int, int], Label]
"""(request, group, tokens before a block's end) -> what that block is worth in host memory."""


@dataclass(slots=True)
class Store:
    """A block on its way to host memory."""

    key: bytes
    """Block hash with group id."""
    source: KVCacheBlock
    tokens: int
    """Tokens up to the block's end."""
    label: Label
    owner: Owner | None = None
    """Label under which L3 keeps it; None where it does not."""
    target: KVCacheBlock | None = None

    @property
    def group(self) -> int:
        """KV cache group."""
        return get_group_id(self.key)

    @property
    def hash(self) -> bytes:
        """Block hash without the group."""
        return get_block_hash(self.key)


@dataclass(slots=True)
class StoreCounts:
    """Blocks since the start."""

    stored: int = 0
    rescued: int = 0
    backfilled: int = 0
    dropped: int = 0
    """Not stored for want of room."""


@dataclass(slots=True)
class Stores:
    """The queue of blocks to be copied out, and the copies under way."""

    hosts: tuple[HostPool, HostPool]
    """Of the full-attention and the SWA group."""
    labels: Labels
    owner: Callable[[Request], Owner | None]
    backfill_limit: int
    """Most blocks that are backfilled in a step."""
    counts: StoreCounts = field(default_factory=StoreCounts)
    new: dict[bytes, Store] = field(default_factory=dict)
    late: dict[bytes, Store] = field(default_factory=dict)
    """To be backfilled."""
    overwritten: dict[bytes, Store] = field(default_factory=dict)
    under_way: dict[int, list[Store]] = field(default_factory=dict)
    """Operation -> its stores, rescues first."""
    keys_under_way: set[bytes] = field(default_factory=set)
    epoch: int = 0
    """Raised when caches are dropped: what is under way then is not published."""
    epochs: dict[int, int] = field(default_factory=dict)

    def cached(self, request: Request, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks of a request have entered the device's prefix cache."""
        for block in blocks:
            key = block.block_hash
            if key is None or key in self.new or self._held(key):
                continue
            self.new[key] = self._store(request, key, block)
            self.late.pop(key, None)

    def lacking(self, request: Request, blocks: Iterable[KVCacheBlock]) -> None:
        """The device holds these cached blocks: backfill those that the host lacks."""
        for block in blocks:
            key = block.block_hash
            if key is None or key in self.new or key in self.late or self._held(key):
                continue
            self.late[key] = self._store(request, key, block)

    def _held(self, key: bytes) -> bool:
        return key in self.keys_under_way or self.hosts[get_group_id(key)].find(key) is not None

    def _store(self, request: Request, key: bytes, block: KVCacheBlock) -> Store:
        tokens = block.block_hash_num_tokens or 0
        label = self.labels(request, get_group_id(key), tokens)
        return Store(key, block, tokens, label, self.owner(request))

    def overwrite(self, key: bytes, block: KVCacheBlock) -> None:
        """The step being scheduled overwrites a block whose content was cached under `key`."""
        store = self.new.get(key)
        if store is not None and store.source is block:
            del self.new[key]
            self.overwritten[key] = store
        late = self.late.get(key)
        if late is not None and late.source is block:
            del self.late[key]

    def build(self, moves: TierMoves, begin: Callable[[], int]) -> None:
        """Add this step's copies, as an operation that `begin` numbers."""
        rescues = self._take(self.overwritten.values())
        # What was forgotten in the meantime is not valid.
        fresh = [s for s in self.new.values() if s.source.block_hash == s.key]
        stores = self._take(fresh)
        late = self._take(self._backfill())
        self.overwritten.clear()
        self.new.clear()
        for copies, taken in ((moves.rescues, rescues), (moves.stores, stores + late)):
            for store in taken:
                assert store.target is not None
                copies.of(store.group).append((store.source.block_id, store.target.block_id))
        started = rescues + stores + late
        if started:
            op = moves.store_op = begin()
            self.under_way[op] = started
            self.epochs[op] = self.epoch
            self.keys_under_way.update(store.key for store in started)
        self.counts.rescued += len(rescues)
        self.counts.backfilled += len(late)

    def _backfill(self) -> list[Store]:
        chosen: list[Store] = []
        for key, store in list(self.late.items()):
            if len(chosen) >= self.backfill_limit:
                break
            del self.late[key]
            if store.source.block_hash == key and not self._held(key):
                chosen.append(store)
        return chosen

    def _take(self, stores: Iterable[Store]) -> list[Store]:
        """Give stores their host blocks; those for which there is none are dropped."""
        taken: list[Store] = []
        for group in (FULL_GROUP, WINDOW_GROUP):
            own = [store for store in stores if store.group == group]
            host = self.hosts[group]
            fitting = own[: host.get_num_free_blocks()]
            self.counts.dropped += len(own) - len(fitting)
            for store, block in zip(fitting, host.take(len(fitting)) or (), strict=True):
                store.target = block
            taken += fitting
        return taken

    @property
    def waiting(self) -> bool:
        """Whether blocks are queued."""
        return bool(self.new or self.late or self.overwritten)

    def finish(self, op: int, failed: set[int]) -> list[Store]:
        """All workers have done an operation: let its blocks be found. Returns those.

        They are held until `release`.
        """
        stores = self.under_way[op]
        valid = self.epochs.pop(op) == self.epoch
        published = []
        for index, store in enumerate(stores):
            self.keys_under_way.discard(store.key)
            assert store.target is not None
            host = self.hosts[store.group]
            if valid and index not in failed:
                host.publish(store.target, store.key, store.tokens)
                published.append(store)
        self.counts.stored += len(published)
        return published

    def release(self, op: int) -> None:
        """Give up the blocks of a finished operation: the host may evict them from now on."""
        stores = self.under_way.pop(op)
        runs: dict[tuple[int, Label], list[KVCacheBlock]] = {}
        for store in stores:
            assert store.target is not None
            runs.setdefault((store.group, store.label), []).append(store.target)
        for (group, label), blocks in runs.items():
            self.hosts[group].release(blocks, label)

    def forget(self) -> None:
        """Caches were dropped: nothing that was queued or is under way is valid."""
        self.new.clear()
        self.late.clear()
        self.overwritten.clear()
        self.epoch += 1
