"""Keeps host memory complete, and says what a chain is worth there once its request has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

from vllm_mimo.kv.eviction import SUPERSEDED, Label
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from vllm_mimo.kv.manager import MimoKVCacheManager
    from vllm_mimo.kv.pools import FullManager, WindowManager
    from vllm_mimo.tiers.host_pool import HostPool
    from vllm_mimo.tiers.stores import Stores


ROOM = 2
"""Host memory is backfilled where it has so many times the device's blocks. A smaller one would
give up what it alone holds for copies of what the device has too (`docs/tiers.md`)."""


class Repairs:
    """Backfill and labels.

    Args:
        backfill: whether blocks that only the device holds are queued for host memory.
    """

    request_of: Callable[[str], Request]
    """Finds a running request by its id."""

    def __init__(
        self,
        manager: MimoKVCacheManager,
        hosts: tuple[HostPool, HostPool],
        stores: Stores,
        backfill: bool,
    ) -> None:
        self.manager = manager
        self.hosts = hosts
        self.stores = stores
        pools: tuple[FullManager | WindowManager, ...] = (manager.full, manager.window)
        self.backfilled = [
            pool
            for pool, host in zip(pools, hosts, strict=True)
            if backfill and host.num_gpu_blocks >= ROOM * pool.block_pool.num_gpu_blocks
        ]
        """The pools whose blocks are."""
        self._checked: set[str] = set()
        """Requests whose blocks were looked at when their prompt ended."""

    def step(self, output: SchedulerOutput) -> None:
        """Queue what host memory lacks of requests whose prompt is computed in this step."""
        if not self.backfilled:
            return
        for new in output.scheduled_new_reqs:
            self._checked.discard(new.req_id)
        for request_id, tokens in output.num_scheduled_tokens.items():
            if request_id in self._checked:
                continue
            request = self.request_of(request_id)
            if request.num_computed_tokens + tokens >= request.num_prompt_tokens:
                self._checked.add(request_id)
                for manager in self.backfilled:
                    self._lacking(request, manager)

    def _lacking(self, request: Request, manager: FullManager | WindowManager) -> None:
        blocks = manager.req_to_blocks.get(request.request_id, ())
        self.stores.lacking(request, (b for b in blocks if not b.is_null))

    def request_ends(self, request: Request) -> None:
        """Before a request's blocks are freed."""
        manager = self.manager
        if manager.full in self.backfilled:
            self._lacking(request, manager.full)
        self._checked.discard(request.request_id)
        turn = manager.worth.turn_of.get(request.request_id)
        if turn is None:
            return
        self.hosts[FULL_GROUP].refresh(_keys(manager.full, request.block_hashes), Label(turn))
        resume = manager.resumes.get(request.request_id)
        if resume is None or not resume.tail or resume.start <= turn.shared:
            return
        if request.num_computed_tokens >= resume.start + manager.window.block_size:
            keys = _keys(manager.window, request.block_hashes)
            last = resume.start // manager.window.block_size
            self.hosts[WINDOW_GROUP].refresh(keys[last - len(resume.tail) : last], SUPERSEDED)


def _keys(manager: FullManager | WindowManager, hashes: list[BlockHash]) -> list[bytes]:
    end = manager.key_end
    return [block_hash + end for block_hash in manager.block_hashes(hashes)]
