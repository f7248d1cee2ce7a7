"""The worker of CPUs."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_mimo.worker.worker import WorkerSeam


class MimoCPUWorker(WorkerSeam, CPUWorker):
    """vLLM's CPU worker with our seam."""
