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

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.request import Request

from vllm_mimo.kv.below import Load
from vllm_mimo.kv.eviction import SUPERSEDED, Label
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.resume import Resume
from vllm_mimo.kv.worth import PASSED_TAIL
from vllm_mimo.tiers.ahead import AheadLoads
from vllm_mimo.tiers.host_pool import HostPool
from vllm_mimo.tiers.lookup import FullTiers, WindowTiers
from vllm_mimo.tiers.moves import Copies, TierMoves, TierReport
from vllm_mimo.tiers.stores import Stores

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from vllm_mimo.kv.pools import FullManager, WindowManager


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
        self.workers = workers
        worth = manager.worth
        size = manager.full.block_pool.hash_block_size
        full, window = (
            HostPool(blocks, size, worth.turns, worth.policy, worth.clock) for blocks in host_blocks
        )
        self.hosts = (full, window)
        self.stores = Stores(self.hosts, self.label, lambda request: ("", ""), policy.backfill)
        self.counts = TierCounts()
        self.figures: Counter[str] = Counter()
        """Sums of what workers reported."""
        self.gains: dict[str, int] = {}
        """Tokens that a waiting request would take from host memory."""
        self.next = TierMoves()
        self.ops = 0
        self.unfinished: dict[int, int] = {}
        """Operation -> workers that have not finished it."""
        self.failed: dict[int, set[int]] = {}
        self.pins: dict[int, Pin] = {}
        self.pin = Pin([])
        """Of the step that is being scheduled."""
        self.ahead = AheadLoads(manager, waiting)
        self.whole: set[str] = set()
        """Requests whose blocks were checked for backfill at the end of their prompt."""
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

    def matched(self, request: Request, computed: int) -> int:
        """Tokens that lower tiers add to the device's `computed` ones."""
        resume = self.manager.resumes.get(request.request_id)
        if resume is None or not resume.has_loads:
            return 0
        return resume.start - computed

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
        if self.policy.backfill:
            self._backfill_at_prompt_end(output)
        if self.policy.ahead and moves.forward:
            self._load_ahead(moves)
        if moves.loads:
            moves.load_op = self._begin(self.pin)
            self.pin = Pin([])
        op = self._op()
        self.stores.build(moves, op)
        if moves.store_op is not None:
            self.unfinished[op] = self.workers
        return moves

    def _op(self) -> int:
        self.ops += 1
        return self.ops

    def _begin(self, pin: Pin) -> int:
        op = self._op()
        self.pins[op] = pin
        self.unfinished[op] = self.workers
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
        for op, failed in report.failed.items():
            self.failed.setdefault(op, set()).update(failed)
        for op, workers in report.done.items():
            self.unfinished[op] -= workers
            if not self.unfinished[op]:
                del self.unfinished[op]
                self._finish(op, self.failed.pop(op, set()))

    def _finish(self, op: int, failed: set[int]) -> None:
        pin = self.pins.pop(op, None)
        if pin is not None:
            self._unpin(pin)
        if op in self.stores.under_way:
            self.stores.finish(op, failed)

    def _unpin(self, pin: Pin) -> None:
        runs: dict[tuple[int, Label], list[KVCacheBlock]] = {}
        for block, group, label in pin.blocks:
            runs.setdefault((group, label), []).append(block)
        for (group, label), blocks in runs.items():
            self.hosts[group].release(blocks, label)

    @property
    def is_busy(self) -> bool:
        """Whether steps are needed although no request runs."""
        return bool(self.unfinished or self.stores.waiting)

    # --- repairs ---------------------------------------------------------------------------------

    def _backfill_at_prompt_end(self, output: SchedulerOutput) -> None:
        """Queue what host memory lacks of requests whose prompt is computed in this step."""
        managers = (self.manager.full, self.manager.window)
        for new in output.scheduled_new_reqs:
            self.whole.discard(new.req_id)
        for request_id in output.num_scheduled_tokens:
            if request_id in self.whole:
                continue
            request = self.request_of(request_id)
            done = request.num_computed_tokens + output.num_scheduled_tokens[request_id]
            if done >= request.num_prompt_tokens:
                self.whole.add(request_id)
                for manager in managers:
                    self._lacking(request, manager)

    request_of: Callable[[str], Request]
    """Finds a running request by its id."""

    def _lacking(self, request: Request, manager: FullManager | WindowManager) -> None:
        blocks = manager.req_to_blocks.get(request.request_id, ())
        self.stores.lacking(request, (b for b in blocks if not b.is_null))

    def request_ends(self, request: Request) -> None:
        """Before a request's blocks are freed: what its chain is worth from now on."""
        manager = self.manager
        if self.policy.backfill:
            self._lacking(request, manager.full)
        self.whole.discard(request.request_id)
        self.gains.pop(request.request_id, None)
        worth = manager.worth
        turn = worth.turn_of.get(request.request_id)
        if turn is None:
            return
        self.hosts[FULL_GROUP].refresh(_keys(manager.full, request.block_hashes), Label(turn))
        resume = manager.resumes.get(request.request_id)
        if resume is None or not resume.tail or resume.start <= turn.shared:
            return
        size = manager.window.block_size
        moved_on = request.num_computed_tokens >= resume.start + size
        if moved_on:
            keys = _keys(manager.window, request.block_hashes)
            last = resume.start // size
            self.hosts[WINDOW_GROUP].refresh(keys[last - len(resume.tail) : last], SUPERSEDED)

    # --- reset -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all that lower tiers hold, e.g. because the weights have changed."""
        for host in self.hosts:
            host.forget()
        self.stores.forget()


def _keys(manager: FullManager | WindowManager, hashes: list[BlockHash]) -> list[bytes]:
    return [block_hash + manager.key_end for block_hash in manager.block_hashes(hashes)]
