"""Hands the tiers' figures to the server's metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm_mimo.metrics import names
from vllm_mimo.metrics.board import engine_board
from vllm_mimo.scheduling.kv_figures import SECONDS
from vllm_mimo.scheduling.policy import SchedulingPolicy
from vllm_mimo.tiers.connector import MimoTierConnector

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

    from vllm_mimo.scheduling.scheduler import MimoScheduler


class TierFigures(SchedulingPolicy):
    """Writes bytes, hits and repairs of the tiers on the engine's board, where there are tiers."""

    def __init__(self, scheduler: MimoScheduler) -> None:
        super().__init__(scheduler)
        connector = scheduler.connector
        self.director = connector.director if isinstance(connector, MimoTierConnector) else None
        self.board = engine_board(scheduler.vllm_config)
        self.written = 0.0

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        now = time.monotonic()
        if now - self.written >= SECONDS or not self.scheduler.running:
            self.written = now
            self.write()

    def write(self) -> None:
        """Bring the board up to date."""
        if self.director is None:
            return
        counts, stores = self.director.counts, self.director.stores.counts
        moved = self.director.figures
        full, window = self.director.hosts
        for name, value in {
            names.HOST_HIT_TOKENS: counts.host_hit_tokens,
            names.HOST_HIT_REQUESTS: counts.loaded_requests,
            names.HOST_LOADED_FULL: moved["host_loaded_bytes_0"],
            names.HOST_LOADED_SWA: moved["host_loaded_bytes_1"],
            names.HOST_STORED_FULL: moved["host_stored_bytes_0"],
            names.HOST_STORED_SWA: moved["host_stored_bytes_1"],
            names.HOST_FULL_EVICTED: full.num_evicted,
            names.HOST_SWA_EVICTED: window.num_evicted,
            names.HOST_BACKFILLED: stores.backfilled,
            names.HOST_RESCUED: stores.rescued,
            names.HOST_DROPPED: stores.dropped,
            names.HOST_AHEAD: counts.ahead_blocks,
            names.LOAD_SECONDS: moved["load_s"],
            names.LOAD_EXPOSED_SECONDS: moved["exposed_s"],
            names.HOST_FULL_USAGE: full.filled,
            names.HOST_SWA_USAGE: window.filled,
            **self._remote(),
        }.items():
            self.board.set(name, float(value))

    def _remote(self) -> dict[str, float]:
        assert self.director is not None
        remote, moved = self.director.remote, self.director.figures
        if remote is None:
            return {}
        reads, writes = remote.reads.counts, remote.writes.counts
        return {
            names.L3_READ: moved["l3_read"],
            names.L3_WRITTEN: moved["l3_written"],
            names.L3_READ_BLOCKS: reads.blocks,
            names.L3_FAILED_BLOCKS: reads.failed_blocks,
            names.L3_WRITTEN_BLOCKS: writes.written,
            names.L3_DROPPED_BLOCKS: writes.dropped,
            names.L3_KEEP_ALIVES: writes.keep_alives,
            names.L3_RECOMPUTED: reads.recomputed_requests,
            names.L3_TIMEOUTS: reads.timeouts,
        }
