"""Shows the plugin's counters in the server's `/metrics`: a stat logger plugin of vLLM.

vLLM calls it in the API process whenever the engine reports; it is asked for by the entry point
`vllm.stat_logger_plugins` and stays silent for models that write no board.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_mimo.metrics.board import board_path, open_board
from vllm_mimo.metrics.names import COUNTERS, GAUGES, PREFIX

LABELS = ("model_name", "engine")

_made: dict[str, Counter | Gauge] = {}


def figure(name: str) -> Any:
    """The process's Prometheus counter or gauge of that name."""
    if name not in _made:
        kind, texts = (Counter, COUNTERS) if name in COUNTERS else (Gauge, GAUGES)
        _made[name] = kind(PREFIX + name, texts[name], LABELS, registry=REGISTRY)
    return _made[name]


class MimoStatLogger(StatLoggerBase):
    """Hands on what one engine has counted since the last report."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        # The engine has made its board by now, if its model has one. Of several API processes one
        # is enough: they would count the same things.
        active = getattr(vllm_config.parallel_config, "_api_process_rank", 0) in (-1, 0)
        self.board = open_board(board_path(engine_index)) if active else None
        served = vllm_config.model_config.served_model_name
        self.labels = (served if isinstance(served, str) else served[0], str(engine_index))
        self.seen: dict[str, float] = {}

    def record(self, *_: Any, **__: Any) -> None:
        if self.board is None:
            return
        for name, value in self.board.values().items():
            if name in GAUGES:
                figure(name).labels(*self.labels).set(value)
            elif name in COUNTERS and value > self.seen.get(name, 0.0):
                figure(name).labels(*self.labels).inc(value - self.seen.get(name, 0.0))
                self.seen[name] = value

    def log_engine_initialized(self) -> None:
        """Show every figure from the start, at 0."""
        if self.board is not None:
            for name in self.board.names:
                figure(name).labels(*self.labels)
