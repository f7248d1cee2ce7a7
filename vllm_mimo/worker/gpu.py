"""The worker of CUDA and ROCm devices."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from vllm_mimo.worker.worker import WorkerSeam


class MimoGPUWorker(WorkerSeam, Worker):
    """vLLM's GPU worker with our seam."""
