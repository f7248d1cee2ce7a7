"""Hands the KV cache's figures to the server's metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.misses import CAPACITY, EVICTED, NO_PREFIX, NO_TAIL, SALT
from vllm_mimo.metrics import names
from vllm_mimo.metrics.board import engine_board
from vllm_mimo.scheduling.policy import SchedulingPolicy

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from vllm_mimo.scheduling.scheduler import MimoScheduler

SECONDS = 0.25
"""Figures are written no more often than this while requests run."""


class KVFigures(SchedulingPolicy):
    """Writes usage, evictions, hits and misses on the engine's board."""

    def __init__(self, scheduler: MimoScheduler) -> None:
        super().__init__(scheduler)
        self.board = engine_board(scheduler.vllm_config)
        self.written = 0.0

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        now = time.monotonic()
        if now - self.written >= SECONDS or not self.scheduler.running:
            self.written = now
            self.write()

    def request_ends(self, request: Request) -> None:
        self.write()

    def write(self) -> None:
        """Bring the board up to date."""
        manager = self.scheduler.kv_cache_manager
        assert isinstance(manager, MimoKVCacheManager)
        full, window = manager.full.block_pool, manager.window.block_pool
        misses = manager.misses
        for name, value in {
            names.FULL_POOL_USAGE: full.get_usage(),
            names.SWA_POOL_USAGE: window.get_usage(),
            names.FULL_EVICTED: full.num_evicted,
            names.SWA_EVICTED: window.num_evicted,
            names.CACHED_TOKENS: misses.hit_tokens,
            names.REPLAYS: misses.replays,
            names.MISSED_NO_PREFIX: misses.counts[NO_PREFIX],
            names.MISSED_EVICTED: misses.counts[EVICTED],
            names.MISSED_NO_TAIL: misses.counts[NO_TAIL],
            names.MISSED_SALT: misses.counts[SALT],
            names.REFUSED_ADMISSIONS: misses.counts[CAPACITY],
        }.items():
            self.board.set(name, float(value))
