"""Shows the plugin's counters in the server's `/metrics`: a stat logger plugin of vLLM.

vLLM calls it in the API process whenever the engine reports; it is asked for by the entry point
`vllm.stat_logger_plugins` and stays silent for models that write no board.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY, Counter
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_mimo.metrics.board import board_path, read_board
from vllm_mimo.metrics.names import COUNTERS, PREFIX

LABELS = ("model_name", "engine")

_made: dict[str, Counter] = {}


def counter(name: str) -> Counter:
    """The process's Prometheus counter of that name."""
    if name not in _made:
        _made[name] = Counter(PREFIX + name, COUNTERS[name], LABELS, registry=REGISTRY)
    return _made[name]


class MimoStatLogger(StatLoggerBase):
    """Hands on what one engine has counted since the last report."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.path = board_path(engine_index)
        # Of several API processes one is enough: they would count the same things.
        self.active = getattr(vllm_config.parallel_config, "_api_process_rank", 0) in (-1, 0)
        served = vllm_config.model_config.served_model_name
        self.labels = (served if isinstance(served, str) else served[0], str(engine_index))
        self.seen: dict[str, float] = {}

    def record(self, *_: Any, **__: Any) -> None:
        if not self.active:
            return
        for name, value in read_board(self.path).items():
            if name in COUNTERS and value > self.seen.get(name, 0.0):
                counter(name).labels(*self.labels).inc(value - self.seen.get(name, 0.0))
                self.seen[name] = value

    def log_engine_initialized(self) -> None:
        """Show every counter from the start, at 0."""
        if self.active:
            for name in read_board(self.path):
                counter(name).labels(*self.labels)
