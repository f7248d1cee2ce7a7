"""The plugin's workers: vLLM's own, whose model runner has our seam (`--worker-cls`)."""

from __future__ import annotations

from typing import Any

from vllm_mimo.worker.runner import add_seam


class WorkerSeam:
    """Adds the seam once the worker has made its model runner."""

    def init_device(self, *args: Any, **kwargs: Any) -> None:
        super().init_device(*args, **kwargs)  # type: ignore[misc]
        add_seam(self.model_runner)  # type: ignore[attr-defined]
