"""GPUs that the planner knows: their memory, and what vLLM defaults to on them."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_mimo.planner.inputs import PlanError

GB = 10**9


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Drivers report more bytes than the sheet's GB as 10^9: an H200 about 139 GiB."""

    name: str
    memory: int
    """Bytes."""
    source: str
    """Where `memory` comes from."""
    batched_tokens: int = 8192
    """vLLM's default `max_num_batched_tokens` of a server (vLLM 0.32, `engine/arg_utils.py`)."""
    num_seqs: int = 1024
    """vLLM's default `max_num_seqs` (same source)."""
    graph_ceiling: int = 512
    """Largest batch that vLLM captures a CUDA graph for by default (0.32, `config/vllm.py`)."""


def _sheet(name: str, gigabytes: int, **defaults: int) -> Gpu:
    return Gpu(
        name, gigabytes * GB, f"NVIDIA data sheet: {gigabytes} GB, as 10^9 bytes", **defaults
    )


GPUS = {
    gpu.name: gpu
    for gpu in (
        _sheet("A100", 80, batched_tokens=2048, num_seqs=256),
        _sheet("H100", 80),
        _sheet("H20", 96),
        _sheet("H20-141GB", 141),
        _sheet("H200", 141),
        _sheet("B200", 180, batched_tokens=16_384, graph_ceiling=1024),
    )
}
"""By name. B200: 1,440 GB of a DGX B200 divided by its 8 GPUs."""


def find_gpu(name: str | None, memory: int | None = None) -> Gpu:
    """The GPU called `name` (any case), or any other with `memory` bytes.

    With both, `name` gives vLLM's defaults and `memory` the size. Raises PlanError.
    """
    if name is None:
        if memory is None:
            raise PlanError(f"give --gpu ({', '.join(GPUS)}) or --gpu-memory, such as 141GB")
        return Gpu("GPU", memory, "--gpu-memory")
    found = {known.lower(): gpu for known, gpu in GPUS.items()}.get(name.lower())
    if found is None:
        raise PlanError(
            f"--gpu '{name}' is not known: choose one of {', '.join(GPUS)}, "
            "or give --gpu-memory instead, such as 141GB"
        )
    if memory is None:
        return found
    return Gpu(
        found.name,
        memory,
        "--gpu-memory",
        found.batched_tokens,
        found.num_seqs,
        found.graph_ceiling,
    )
