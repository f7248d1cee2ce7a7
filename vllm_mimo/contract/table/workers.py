"""The workers and both model runners, where a step's KV slots are prepared."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_V1 = ("vllm.v1.worker.gpu_model_runner",)
_V2 = ("vllm.v1.worker.gpu.model_runner",)
_SEAM = "vllm_mimo.worker.runner"

WORKER_ENTRIES = (
    Entry(
        ("vllm.v1.worker.cpu_worker",),
        "CPUWorker",
        used_by="vllm_mimo.worker.cpu",
        why="base class",
        attributes=("model_runner",),
    ),
    Entry(
        ("vllm.v1.worker.gpu_worker",),
        "Worker",
        used_by="vllm_mimo.worker.gpu",
        why="base class",
        attributes=("model_runner",),
    ),
    *(
        Entry(
            (module,),
            f"{name}.init_device",
            used_by="vllm_mimo.worker.worker",
            why="makes the model runner",
            overrides=True,
        )
        for module, name in (
            ("vllm.v1.worker.cpu_worker", "CPUWorker"),
            ("vllm.v1.worker.gpu_worker", "Worker"),
        )
    ),
    *(
        Entry(
            modules,
            f"{name}.{method}",
            used_by=_SEAM,
            why=why,
            parameters=(parameter,),
        )
        for modules, name in (
            (_V1, "GPUModelRunner"),
            (_V2, "GPUModelRunner"),
            (("vllm.v1.worker.cpu_model_runner",), "CPUModelRunner"),
        )
        for method, parameter, why in (
            ("initialize_kv_cache", "kv_cache_config", "whether there are two pools"),
            ("execute_model", "scheduler_output", "what the scheduler says about a step"),
        )
    ),
    Entry(
        _V1,
        "GPUModelRunner",
        used_by=_SEAM,
        why="the batch of a step and where each request's tokens start in it",
        attributes=("input_batch", "query_start_loc"),
    ),
    Entry(
        _V1,
        "GPUModelRunner._get_slot_mappings",
        used_by=_SEAM,
        why="slots by group: attention metadata and layers share these tensors",
        parameters=(
            "num_tokens_padded",
            "num_reqs_padded",
            "num_tokens_unpadded",
            "ubatch_slices",
        ),
        overrides=True,
    ),
    Entry(
        ("vllm.v1.worker.gpu_input_batch",),
        "InputBatch",
        used_by=_SEAM,
        why="V1: requests and how many of their tokens are computed",
        attributes=("num_computed_tokens_cpu", "req_ids"),
    ),
    Entry(
        ("vllm.v1.utils",),
        "CpuGpuBuffer",
        used_by=_SEAM,
        why="V1: where each request's tokens start, on the host",
        attributes=("np",),
    ),
    Entry(
        _V2,
        "GPUModelRunner.prepare_attn",
        used_by=_SEAM,
        why="slots of all groups, before attention metadata is made of them",
        parameters=("input_batch",),
        overrides=True,
    ),
    Entry(
        ("vllm.v1.worker.gpu.input_batch",),
        "InputBatch",
        used_by=_SEAM,
        why="V2: requests, their computed tokens and where their tokens start",
        attributes=("num_computed_tokens_np", "query_start_loc_np", "req_ids"),
    ),
)
