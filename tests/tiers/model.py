"""The modelled engine of `tests/kv` with host memory below it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from tests.kv.engine import Engine
from tests.kv.geometry import Geometry
from tests.kv.lookup import Hit, expected_hit
from tests.kv.steps import Step
from tests.kv.worker import require
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.tiers.director import TierDirector, TierPolicy
from vllm_mimo.tiers.moves import Copies, TierMoves, TierReport

GROUPS = (FULL_GROUP, WINDOW_GROUP)


class TieredEngine(Engine):
    """Scheduler, manager, director and worker; copies happen where a worker may do them latest."""

    def __init__(
        self, geometry: Geometry, host_blocks: tuple[int, int], policy: TierPolicy, late: int
    ) -> None:
        """Operations are reported `late` steps after their own."""
        super().__init__(geometry)
        self.late = late
        self.director = TierDirector(
            self.manager, host_blocks, policy, waiting=lambda: self.waiting[:1]
        )
        self.director.repairs.request_of = lambda name: self.requests[name]
        worker = self.worker
        self.host_content = [
            np.zeros((count + 1) * size, np.int64)
            for count, size in zip(host_blocks, worker.sizes, strict=True)
        ]
        self.host_exact = [np.zeros_like(content) for content in self.host_content]
        self.moves: TierMoves = TierMoves()
        self.open: list[tuple[int, int]] = []
        """(operation, step that reports it)."""
        self.built = 0

    # --- scheduler -----------------------------------------------------------------------------

    def _admit(self, request: Request, step: Step, left: int) -> bool:
        manager, name = self.manager, request.request_id
        expected = expected_hit(self, request)
        blocks, start, junction = manager.get_computed_blocks(request)
        more = self.director.matched(request, start)
        if not more:
            return super()._admit(request, step, left)
        resume = manager.resumes[name]
        require(resume.start == start + more > start, "lower tiers add nothing", resume)
        request.shared_prefix_boundary = junction
        count = min(request.num_tokens - resume.start, left)
        admitted = manager.allocate_slots(
            request,
            count,
            num_new_computed_tokens=start,
            new_computed_blocks=blocks,
            num_external_computed_tokens=more,
            full_sequence_must_fit=True,
            has_scheduled_reqs=bool(self.running),
        )
        if admitted is None:
            return False
        replay = resume.start if resume.is_replay else -1
        hit = Hit(
            resume.start,
            resume.full_tokens,
            replay,
            (0, 0),
            (0, 0),
            expected.sizes,
            is_replay=resume.is_replay,
        )
        self._admitted(request, resume.start, count, hit, step)
        return True

    def ending(self, request: Request) -> None:
        self.director.request_ends(request)

    def held(self) -> list[list[KVCacheBlock]]:
        placed = self.director.ahead.placed
        return (
            [[], []]
            if placed is None
            else [placed.full, [b for b in placed.window if not b.is_null]]
        )

    def scheduled_blocks(self, step: Step) -> None:
        self.built += 1
        output = SimpleNamespace(
            num_scheduled_tokens=step.num_scheduled_tokens,
            total_num_scheduled_tokens=sum(step.num_scheduled_tokens.values()),
            scheduled_new_reqs=[],
        )
        self.moves = self.director.build(output)  # type: ignore[arg-type]
        moves = self.moves
        self._copy(moves.rescues, out=True)
        self._copy(moves.loads, out=False)
        self._copy(moves.ahead, out=False)
        if not step.num_scheduled_tokens:
            self._copy(moves.stores, out=True)
        for op in (moves.load_op, moves.ahead_op, moves.store_op):
            if op is not None:
                self.open.append((op, self.built + self.late))
        self.report(self.built)

    def report(self, now: float) -> None:
        """Tell of the operations that are due."""
        due = [op for op, when in self.open if when <= now]
        self.open = [(op, when) for op, when in self.open if when > now]
        self.director.report(TierReport(done=dict.fromkeys(due, 1)))

    def settle(self) -> None:
        super().settle()
        while self.director.is_busy:
            self.schedule(self.geometry.budget)

    def forget_cache(self) -> None:
        super().forget_cache()
        self.director.forget()
        for slots in self.host_exact:
            slots[:] = 0

    # --- worker --------------------------------------------------------------------------------

    def _run(self, step: Step) -> None:
        super()._run(step)
        self._copy(self.moves.stores, out=True)

    def _copy(self, copies: Copies, out: bool) -> None:
        for group in GROUPS:
            size = self.worker.sizes[group]
            for source, target in copies.of(group):
                a, b = (
                    slice(source * size, (source + 1) * size),
                    slice(target * size, (target + 1) * size),
                )
                device, host = (a, b) if out else (b, a)
                for here, there in (
                    (self.worker.content[group], self.host_content[group]),
                    (self.worker.exact[group], self.host_exact[group]),
                ):
                    if out:
                        there[host] = here[device]
                    else:
                        here[device] = there[host]


def check_host(engine: TieredEngine) -> None:
    """Every block that host memory's index has holds exact KV of what its hash stands for."""
    for group, host in enumerate(engine.director.hosts):
        size = engine.worker.sizes[group]
        for block in host.blocks:
            if block.block_hash is None:
                continue
            ids = engine.hashed[bytes(block.block_hash)[:-4]]
            require(len(ids) % size == 0, "a part of a block")
            own = slice(block.block_id * size, (block.block_id + 1) * size)
            require(
                bool((engine.host_content[group][own] == ids[-size:]).all()),
                "host block",
                block.block_id,
                "of group",
                group,
                "holds something else",
            )
            require(
                bool((engine.host_exact[group][own] == engine.worker.depths[group]).all()),
                "host block",
                block.block_id,
                "of group",
                group,
                "is not exact",
            )
    if not engine.director.is_busy and not engine.requests:
        for host in engine.director.hosts:
            require(host.get_num_free_blocks() == host.num_gpu_blocks - 1, "a leak in host memory")
