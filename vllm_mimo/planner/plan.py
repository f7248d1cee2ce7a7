"""The whole plan of one placement: weights, other memory, KV budget and both planners' pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_mimo.checkpoints.towers import AudioGeometry, VisionGeometry
from vllm_mimo.planner.gpus import Gpu
from vllm_mimo.planner.inputs import MixPart, PlanError
from vllm_mimo.planner.memory import Item, capture_sizes, other_items
from vllm_mimo.planner.models import PlannedModel
from vllm_mimo.planner.placement import Placement
from vllm_mimo.planner.pools import TwoPools, plan_pools
from vllm_mimo.planner.serving import Serving
from vllm_mimo.planner.weights import largest_rank

UTILIZATION = 0.9
"""Share of the GPU's memory that the engine may use, where the user names none."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on the GPU of each pipeline stage that holds most."""

    weights: tuple[dict[str, int], ...]
    """By part, one dict for each stage."""
    others: tuple[Item, ...]
    """Estimates of what is neither weights nor KV; the same on every stage."""
    graph_sizes: tuple[int, ...]
    """Batch sizes, in tokens, that CUDA graphs are captured for."""
    usable: int
    """Bytes that the engine may use: the GPU's memory times the utilization."""
    budgets: tuple[int, ...]
    """Bytes for KV, on each stage."""
    given: bool
    """Whether the budgets were named by the user instead of computed."""

    def stage_weights(self, stage: int) -> int:
        return sum(self.weights[stage].values())


@dataclass(frozen=True, slots=True)
class Sizing:
    """A placement with its memory and its pools."""

    placement: Placement
    memory: MemoryPlan
    pools: TwoPools

    def total_concurrent(self, mix: Sequence[MixPart]) -> int:
        """Requests of `mix` that run at once on all GPUs together."""
        return self.pools.concurrent(mix)[0] * self.placement.replicas


def plan_memory(
    model: PlannedModel,
    gpu: Gpu,
    placement: Placement,
    serving: Serving,
    utilization: float = UTILIZATION,
    kv_bytes: int | None = None,
) -> MemoryPlan:
    """Memory on each stage; `kv_bytes` replaces the computed budget.

    Raises PlanError where nothing is left for KV.
    """
    if not 0 < utilization <= 1:
        raise PlanError(
            f"--gpu-memory-utilization must be above 0 and up to 1, got {utilization:g}"
        )
    try:
        vision = VisionGeometry.from_config(model.config)
        has_audio = AudioGeometry.from_config(model.config) is not None
        weights = largest_rank(model.config, placement, serving.mtp)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise PlanError(f"--model '{model.name}': {error}") from None
    sizes = capture_sizes(
        serving.max_num_seqs, serving.batched_tokens, 1 + serving.mtp, gpu.graph_ceiling
    )
    others = other_items(
        model.geometry,
        vision,
        has_audio,
        placement,
        serving.batched_tokens,
        serving.max_num_seqs,
        sizes,
        serving.mtp,
    )
    usable = int(gpu.memory * utilization)
    rest = sum(item.size for item in others)
    budgets = [usable - rest - sum(stage.values()) for stage in weights]
    if kv_bytes is not None:
        budgets = [kv_bytes] * len(budgets)
    for stage, budget in enumerate(budgets):
        if budget <= 0:
            raise PlanError(
                f"nothing is left for KV: {sum(weights[stage].values()) / 1e9:.1f} GB of weights "
                f"and {rest / 1e9:.1f} GB of activations, graphs and libraries per GPU against "
                f"{usable / 1e9:.1f} GB ({utilization:g} of {gpu.memory / 1e9:.1f} GB); "
                "use more GPUs, larger ones, or a larger --ep"
            )
    return MemoryPlan(weights, others, sizes, usable, tuple(budgets), kv_bytes is not None)


def size(
    model: PlannedModel,
    gpu: Gpu,
    placement: Placement,
    serving: Serving,
    utilization: float = UTILIZATION,
    kv_bytes: int | None = None,
) -> Sizing:
    """Memory and pools of a placement. Raises PlanError and PoolSizeError."""
    memory = plan_memory(model, gpu, placement, serving, utilization, kv_bytes)
    pools = plan_pools(model.geometry, placement.tp, serving, memory.budgets)
    return Sizing(placement, memory, pools)
