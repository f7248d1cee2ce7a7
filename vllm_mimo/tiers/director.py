"""Decides in the scheduler what moves between the device's pools and host memory.

It keeps the index of host memory, completes look-ups with it, and writes each step's `TierMoves`.
The bytes move in the workers (`vllm_mimo.tiers.mover`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_mimo.kv.below import Load
from vllm_mimo.kv.eviction import Label
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.resume import Resume
from vllm_mimo.kv.worth import PASSED_TAIL
from vllm_mimo.l3.keys import Label as Owner
from vllm_mimo.tiers.ahead import AheadLoads
from vllm_mimo.tiers.host_pool import HostPool
from vllm_mimo.tiers.lookup import FullTiers, WindowTiers
from vllm_mimo.tiers.moves import Copies, TierMoves, TierReport
from vllm_mimo.tiers.operations import Operations
from vllm_mimo.tiers.pace import Pace
from vllm_mimo.tiers.remote import RemoteTier
from vllm_mimo.tiers.repairs import Repairs
from vllm_mimo.tiers.stores import Stores

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What a user may choose; see the keys in docs/configuration.md."""

    ahead: bool = True
    backfill: int = 64


@dataclass(slots=True)
class TierCounts:
    """Since the start."""

    loaded_requests: int = 0
    """Requests that took blocks from host memory."""
    host_hit_tokens: int = 0
    """Tokens that were not computed because host memory held them."""
    loaded_blocks: tuple[int, int] = (0, 0)
    """Full-attention and SWA blocks."""
    ahead_blocks: int = 0
    """Blocks that were loaded a step early."""


@dataclass(slots=True)
class Pin:
    """Host blocks that are read."""

    blocks: list[tuple[KVCacheBlock, int, Label]]
    """(block, group, label under which it is given back)."""


class TierDirector:
    """The tiers below one manager's pools (`vllm_mimo.kv.below.LowerTiers`).

    Args:
        manager: of the device's pools.
        host_blocks: of the full-attention and the SWA pool in host memory.
        policy: the user's choices.
        workers: that report each operation.
        waiting: the requests that wait to be admitted, next first.
    """

    def __init__(
        self,
        manager: MimoKVCacheManager,
        host_blocks: tuple[int, int],
        policy: TierPolicy = TierPolicy(),
        workers: int = 1,
        waiting: Callable[[], Iterable[Request]] = tuple,
    ) -> None:
        self.manager = manager
        self.policy = policy
        worth = manager.worth
        size = manager.full.block_pool.hash_block_size
        full, window = (
            HostPool(blocks, size, worth.turns, worth.policy, worth.clock) for blocks in host_blocks
        )
        self.hosts = (full, window)
        self.stores = Stores(self.hosts, self.label, self._owner, policy.backfill)
        self.remote: RemoteTier | None = None
        """L3, where there is one."""
        self.pace = Pace()
        self.counts = TierCounts()
        self.figures: Counter[str] = Counter()
        """Sums of what workers reported."""
        self.gains: dict[str, int] = {}
        """Tokens that a waiting request would take from host memory."""
        self.next = TierMoves()
        self.operations = Operations(workers)
        self.pins: dict[int, Pin] = {}
        self.pin = Pin([])
        """Of the step that is being scheduled."""
        self.ahead = AheadLoads(manager, waiting)
        self.repairs = Repairs(manager, self.hosts, self.stores, policy.backfill > 0)
        for pool in (manager.full.block_pool, manager.window.block_pool):
            pool.on_cached = self.stores.cached
            pool.on_overwrite = self.stores.overwrite
        manager.below = self

    # --- look-up and admission -------------------------------------------------------------------

    def deeper(self, request: Request, most: int, local: Resume) -> Resume | None:
        """See `LowerTiers`."""
        manager = self.manager
        full = FullTiers(manager.full, self.hosts[FULL_GROUP], local.full)
        window = WindowTiers(manager.window, self.hosts[WINDOW_GROUP])
        found = manager.rule.choose(full, window, request.block_hashes, most)
        self.gains.pop(request.request_id, None)
        if found.start <= local.start:
            return None
        self.gains[request.request_id] = found.start - local.start
        return dataclasses.replace(found, has_loads=True)

    def with_remote(self, request: Request, known: frozenset[bytes]) -> Resume:
        """The resume that all tiers allow, of which L3 is known to hold some keys."""
        manager = self.manager
        full = FullTiers(manager.full, self.hosts[FULL_GROUP], (), known)
        window = WindowTiers(manager.window, self.hosts[WINDOW_GROUP], known)
        return manager.rule.choose(full, window, request.block_hashes, request.num_tokens - 1)

    def use_remote(self, make: Callable[[TierDirector], RemoteTier]) -> None:
        """Put L3 below host memory."""
        self.remote = make(self)

    def _owner(self, request: Request) -> Owner | None:
        return self.remote.owner(request) if self.remote is not None else None

    def matched(self, request: Request, computed: int) -> int | None:
        """Tokens that lower tiers add to the device's `computed` ones; None to ask again later."""
        resume = self.manager.resumes.get(request.request_id)
        if resume is None:
            return 0
        if self.remote is not None and self.remote.must_wait(
            request, resume.start, self.pace.tokens_per_s
        ):
            return None
        return resume.start - computed if resume.has_loads else 0

    def request_added(self, request: Request) -> None:
        """A request entered the queue."""
        if self.remote is not None:
            self.remote.request_added(request)

    def request_admitted(self, request: Request) -> None:
        """A request has its blocks."""
        resume = self.manager.resumes.get(request.request_id)
        if self.remote is not None and resume is not None:
            self.remote.taken(request, resume)

    def load(self, request: Request, full: list[Load], window: list[Load]) -> None:
        """See `LowerTiers`."""
        self._load(request, full, window, self.next.loads, self.pin)
        self.counts.loaded_requests += 1
        self.counts.host_hit_tokens += self.gains.pop(request.request_id, 0)

    def _load(
        self, request: Request, full: list[Load], window: list[Load], copies: Copies, pin: Pin
    ) -> None:
        for group, loads in ((FULL_GROUP, full), (WINDOW_GROUP, window)):
            host = self.hosts[group]
            host.touch([load.source for load in loads])
            pairs = copies.of(group)
            for load in loads:
                pairs.append((load.source.block_id, load.target.block_id))
                tokens = load.source.block_hash_num_tokens or 0
                pin.blocks.append((load.source, group, self.label(request, group, tokens)))
        done = self.counts.loaded_blocks
        self.counts.loaded_blocks = (done[0] + len(full), done[1] + len(window))

    def label(self, request: Request, group: int, tokens: int) -> Label:
        """What a block of a request is worth in host memory."""
        worth = self.manager.worth
        turn = worth.turn_of.get(request.request_id)
        if group == FULL_GROUP:
            return Label(turn)
        passed = 1.0 if request.is_finished() else PASSED_TAIL
        return Label(turn, weight=passed * worth.tail_worth(tokens))

    # --- steps -----------------------------------------------------------------------------------

    def step_starts(self) -> None:
        """See `LowerTiers`. What was loaded ahead is the device's cache like any other."""
        self.ahead.release()

    def build(self, output: SchedulerOutput) -> TierMoves:
        """The moves of the step that was just scheduled."""
        moves, self.next = self.next, TierMoves()
        moves.forward = output.total_num_scheduled_tokens > 0
        self.pace.step(output.total_num_scheduled_tokens)
        self.repairs.step(output)
        if self.policy.ahead and moves.forward:
            self._load_ahead(moves)
        if moves.loads:
            moves.load_op = self._begin(self.pin)
            self.pin = Pin([])
        self.stores.build(moves, self.operations.begin)
        if self.remote is not None:
            self.remote.build(moves, self.pace.tokens_per_s)
        return moves

    def _begin(self, pin: Pin) -> int:
        op = self.operations.begin()
        self.pins[op] = pin
        return op

    def _load_ahead(self, moves: TierMoves) -> None:
        """Load what the next request in the queue will take, while this step runs."""
        taken = self.ahead.place()
        if taken is None:
            return
        request, placed = taken
        pin = Pin([])
        self._load(request, placed.full_loads, placed.window_loads, moves.ahead, pin)
        self.counts.ahead_blocks += len(pin.blocks)
        moves.ahead_op = self._begin(pin)

    def report(self, report: TierReport) -> None:
        """Workers have finished operations."""
        self.figures.update(report.figures)
        for op, failed in self.operations.report(report):
            self._finish(op, failed)

    def _finish(self, op: int, failed: set[int]) -> None:
        pin = self.pins.pop(op, None)
        if pin is not None:
            self._unpin(pin)
        if self.remote is not None and self.remote.finish(op, failed):
            return
        if op in self.stores.under_way:
            published = self.stores.finish(op, failed)
            if self.remote is not None:
                self.remote.stored(published)
            self.stores.release(op)

    def _unpin(self, pin: Pin) -> None:
        runs: dict[tuple[int, Label], list[KVCacheBlock]] = {}
        for block, group, label in pin.blocks:
            runs.setdefault((group, label), []).append(block)
        for (group, label), blocks in runs.items():
            self.hosts[group].release(blocks, label)

    @property
    def is_busy(self) -> bool:
        """Whether steps are needed although no request runs."""
        return self.operations.need_steps or self.stores.waiting

    def request_ends(self, request: Request) -> None:
        """Before a request's blocks are freed."""
        self.gains.pop(request.request_id, None)
        self.repairs.request_ends(request)
        if self.remote is not None:
            self.remote.request_gone(request.request_id)

    # --- reset -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all that lower tiers hold, e.g. because the weights have changed."""
        for host in self.hosts:
            host.forget()
        self.stores.forget()
        if self.remote is not None:
            self.remote.forget()

    def close(self) -> None:
        """End what runs in the background."""
        if self.remote is not None:
            self.remote.close()
