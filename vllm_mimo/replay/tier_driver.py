"""One engine with tiers below its pools: the real manager and director, and a model of L3.

Copies take no time: what a step starts is finished before the next one. What L3 holds and a waiting
request wants comes to host memory before the request is looked up for admission, as the engine does
it: host blocks are taken, filled, published, and then found by the usual look-up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import RequestStatus

from vllm_mimo.kv.below import HostHit, RemoteHit
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.replay.mimo_policy import MimoDriver
from vllm_mimo.replay.policy import Lookup
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.tiers.lookup import FullTiers, WindowTiers
from vllm_mimo.tiers.moves import TierReport

if TYPE_CHECKING:
    from vllm_mimo.kv.resume import Resume
    from vllm_mimo.replay.tier_options import TierOptions
    from vllm_mimo.replay.tier_store import RemoteIndex
    from vllm_mimo.tiers.director import TierDirector

GROUPS = (FULL_GROUP, WINDOW_GROUP)


class TierDriver(MimoDriver):
    """A `CacheDriver` over a manager with host memory and, if given, L3 below it.

    Args:
        base: the driver of the same manager without tiers.
        director: of that manager.
        block_bytes: of a full-attention and an SWA block.
        remote: L3.
        options: the user's choices.
    """

    def __init__(
        self,
        base: MimoDriver,
        director: TierDirector,
        block_bytes: tuple[int, int],
        remote: RemoteIndex | None,
        options: TierOptions,
    ) -> None:
        super().__init__(
            base.manager, base.hash_block_size, base.group_kinds, base.counter, base.facts
        )
        self.director = director
        self.block_bytes = block_bytes
        self.remote = remote
        self.options = options
        self.figures: Counter[str] = Counter()
        self.requests: dict[str, Any] = {}
        director.repairs.request_of = self.requests.__getitem__

    # --- look-up ---------------------------------------------------------------------------------

    def lookup(self, request: ReplayRequest) -> Lookup:
        manager = self.manager
        manager.new_step_starts()
        start = time.thread_time_ns()
        found = manager.get_computed_blocks(request)
        near: Resume = manager.resumes[request.request_id]
        if self.remote is not None and self._fetch(request, near, self.remote):
            found = manager.get_computed_blocks(request)
        elapsed = time.thread_time_ns() - start
        resume: Resume = manager.resumes[request.request_id]
        cached = max(resume.start, resume.full_tokens)
        return Lookup(cached, resume.start, elapsed, (found, near.start))

    def _fetch(self, request: Any, near: Resume, remote: RemoteIndex) -> bool:
        """Read into host memory what L3 adds to a resume; whether it did."""
        manager, hosts = self.manager, self.director.hosts
        full = FullTiers(manager.full, hosts[FULL_GROUP], near.full, remote)
        window = WindowTiers(manager.window, hosts[WINDOW_GROUP], remote)
        deep = manager.rule.choose(full, window, request.block_hashes, request.num_tokens - 1)
        if deep.start <= near.start:
            return False
        wanted = (deep.full, deep.tail)
        first = (0, deep.start // manager.window.block_size - len(deep.tail))
        # What host memory has of the resume must not be evicted for the rest of it.
        for host, blocks in zip(hosts, wanted, strict=True):
            host.touch([b.block for b in blocks if type(b) is HostHit])
        keys = [[b.key for b in blocks if type(b) is RemoteHit] for blocks in wanted]
        room = all(
            len(own) <= host.get_num_free_blocks() for host, own in zip(hosts, keys, strict=True)
        )
        for group in GROUPS:
            self._take_in(request, group, wanted[group], first[group], fill=room)
        if not room:
            self.figures["fetches_without_room"] += 1
            return False
        for own in keys:
            remote.get(reversed(own))
        self.figures["fetches"] += 1
        return True

    def _take_in(self, request: Any, group: int, blocks: list[Any], first: int, fill: bool) -> None:
        """Let go of host blocks that were held, and of those that are filled from L3."""
        host = self.director.hosts[group]
        size = (self.manager.full, self.manager.window)[group].block_size
        missing = sum(type(b) is RemoteHit for b in blocks) if fill else 0
        new = iter(host.take(missing) or ())
        held: list[KVCacheBlock] = []
        for index, block in enumerate(blocks, first + 1):
            if type(block) is HostHit:
                held.append(block.block)
            elif type(block) is RemoteHit and fill:
                target = next(new)
                host.publish(target, block.key, index * size)
                held.append(target)
        if blocks:
            label = self.director.label(request, group, (first + len(blocks)) * size)
            host.release(held, label)

    # --- steps -----------------------------------------------------------------------------------

    def admit(self, request: ReplayRequest, lookup: Lookup, tokens: int, idle: bool) -> bool:
        (blocks, hit, junction), near = lookup.handle
        more = self.director.matched(request, hit)
        request.shared_prefix_boundary = junction
        allocated = self.manager.allocate_slots(
            request,
            tokens,
            num_new_computed_tokens=hit,
            new_computed_blocks=blocks,
            num_external_computed_tokens=more,
            full_sequence_must_fit=True,
            has_scheduled_reqs=not idle,
        )
        if allocated is None:
            return False
        if not request.counted:
            self.figures["device_tokens"] += hit
            self.figures["host_tokens"] += near - hit
            self.figures["l3_tokens"] += lookup.resume - near
        self.requests[request.request_id] = request
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = lookup.resume
        self._end_step({request.request_id: tokens}, is_new=True)
        request.num_computed_tokens += tokens
        if self.options.keep_alive != "off":
            resume: Resume = self.manager.resumes[request.request_id]
            self._keep_alive(request, resume.full_tokens, resume.start, len(resume.tail))
        return True

    def step(self, request: ReplayRequest, tokens: int) -> bool:
        self.manager.new_step_starts()
        if self.manager.allocate_slots(request, tokens) is None:
            return False
        self._end_step({request.request_id: tokens})
        request.num_computed_tokens += tokens
        return True

    def finish(self, request: ReplayRequest, ended_in_tool_call: bool | None) -> None:
        self.manager.mark_finished(request, ended_in_tool_call)
        request.status = RequestStatus.FINISHED_STOPPED
        request.finished = True
        self.director.request_ends(request)
        self.manager.free(request)
        del self.requests[request.request_id]
        self._settle()
        if self.options.keep_alive == "ends":
            done = request.num_computed_tokens
            self._keep_alive(request, done, done, self.manager.window.rule.blocks)

    def preempt(self, request: ReplayRequest) -> None:
        super().preempt(request)
        self.requests.pop(request.request_id, None)

    def _settle(self) -> None:
        """Steps follow without end in an engine: let what is queued go out."""
        while self.director.is_busy:
            self.manager.new_step_starts()
            self._end_step({})

    def _end_step(self, scheduled: dict[str, int], is_new: bool = False) -> None:
        """Build a step's moves and finish them."""
        director, figures = self.director, self.figures
        new = [SimpleNamespace(req_id=name) for name in scheduled] if is_new else []
        output: Any = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_new_reqs=new,
        )
        moves = director.build(output)
        for group, size in zip(GROUPS, self.block_bytes, strict=True):
            figures["loaded_bytes"] += len(moves.loads.of(group)) * size
            out = len(moves.stores.of(group)) + len(moves.rescues.of(group))
            figures["stored_bytes"] += out * size
        stores = () if moves.store_op is None else director.stores.under_way[moves.store_op]
        keys = [store.key for store in stores]
        ops = (moves.load_op, moves.ahead_op, moves.store_op)
        director.report(TierReport(done={op: 1 for op in ops if op is not None}))
        if self.remote is not None:
            self.remote.put(keys)

    # --- L3 --------------------------------------------------------------------------------------

    def _keep_alive(self, request: Any, full: int, end: int, tail: int) -> None:
        """Tell L3 that a chain is in use: its head last, so that its end is evicted first."""
        remote = self.remote
        if remote is None:
            return
        manager = self.manager
        keys = _keys(manager.full, request, 0, full // manager.full.block_size)
        last = end // manager.window.block_size
        keys += _keys(manager.window, request, max(0, last - tail), last)
        remote.touch(reversed(keys))

    # --- figures ---------------------------------------------------------------------------------

    def tier_figures(self) -> Mapping[str, int]:
        counts = self.director.stores.counts
        figures = Counter(self.figures)
        figures["rescued_blocks"] = counts.rescued
        figures["backfilled_blocks"] = counts.backfilled
        figures["dropped_blocks"] = counts.dropped
        for kind, host in zip(("full", "swa"), self.director.hosts, strict=True):
            figures[f"host_{kind}_blocks"] = host.num_gpu_blocks - 1
            figures[f"host_{kind}_evicted"] = host.num_evicted
        return figures


def _keys(pool: Any, request: Any, first: int, last: int) -> list[bytes]:
    hashes: Iterable[bytes] = pool.block_hashes(request.block_hashes)[first:last]
    end: bytes = pool.key_end
    return [block_hash + end for block_hash in hashes]
