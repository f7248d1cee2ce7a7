"""What the numbers suggest: expert and tensor parallelism, the pools' split, CUDA graphs.

The question about expert parallelism is the one of arXiv 2607.13095, section 5.1: once the SWA pool
is small, a GPU needs fewer bytes for KV and can hold more experts, so that fewer GPUs have to talk
to each other. Whether enough KV is left depends on the mix of contexts, so it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vllm_mimo.planner.gpus import Gpu
from vllm_mimo.planner.inputs import MixPart, PlanError
from vllm_mimo.planner.memory import graph_bytes
from vllm_mimo.planner.models import PlannedModel
from vllm_mimo.planner.placement import Placement, place
from vllm_mimo.planner.plan import Sizing, size
from vllm_mimo.planner.pools import PoolSizeError, TwoPools, plan_pools
from vllm_mimo.planner.serving import Serving

ENOUGH = 0.9
"""Share of the requests that half the EP has to keep to be advised (a rule of thumb)."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One placement's numbers; `error` instead of them where it does not fit."""

    tp: int
    ep: int
    instances: int
    replicas: int
    weights: int = 0
    """Bytes per GPU, of the fullest stage."""
    kv: int = 0
    """Bytes per GPU, of the stage with least."""
    request_bytes: float = 0.0
    """KV of one average request of the mix on a rank."""
    window_share: float = 0.0
    """Part of that which is SWA."""
    concurrent: int = 0
    """Requests of the mix on all GPUs together."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SplitAdvice:
    """The pools' split against the one that fits the mix's running requests."""

    binding: str
    concurrent: int
    spare_tails: int
    """SWA windows that fit beside the running requests' when the other pool is full."""
    balanced_fraction: float
    balanced_concurrent: int


@dataclass(frozen=True, slots=True)
class GraphAdvice:
    """CUDA graphs against the batches that the mix can reach."""

    sizes: int
    size: int
    """Bytes of all of them (an estimate)."""
    largest: int
    needed: int
    """Tokens of the largest decoding batch, `max_num_seqs` considered."""
    keep: int
    """Smallest captured size that holds `needed` tokens, or the largest there is."""
    unused: int
    """Sizes above `keep`, which no decoding batch of the mix reaches."""
    freed: int
    """Bytes that leaving those out would free (an estimate)."""
    gained: int
    """Requests of the mix that the freed bytes would hold."""


def alternatives(
    model: PlannedModel,
    gpu: Gpu,
    base: Placement,
    serving: Serving,
    mix: Sequence[MixPart],
    utilization: float,
) -> tuple[Alternative, ...]:
    """The placement itself, then it with half its TP, then both with half its EP.

    KV budgets are computed for all of them, also where the user named one.
    """
    found = []
    for tp, ep in _candidates(base):
        try:
            placement = place(model.geometry, base.count, tp, ep, base.pp)
            sizing = size(model, gpu, placement, serving, utilization)
        except (PlanError, PoolSizeError) as error:
            found.append(Alternative(tp, ep, 0, 0, error=str(error)))
            continue
        found.append(_numbers(sizing, mix))
    return tuple(found)


def best(found: Sequence[Alternative], ep: int) -> Alternative | None:
    """The fitting alternative with this EP that runs most requests."""
    fitting = [other for other in found if other.ep == ep and other.error is None]
    return max(fitting, key=lambda other: other.concurrent, default=None)


def is_enough(half: Alternative | None, whole: Alternative | None, max_num_seqs: int) -> bool:
    """Whether half the EP leaves enough KV for the mix, each at its best TP."""
    if half is None:
        return False
    full_house = half.concurrent >= max_num_seqs * half.replicas
    return full_house or whole is None or half.concurrent >= ENOUGH * whole.concurrent


def split_advice(
    pools: TwoPools,
    model: PlannedModel,
    tp: int,
    mix: Sequence[MixPart],
    budgets: Sequence[int],
) -> SplitAdvice:
    """What another split would give."""
    concurrent, binding = pools.concurrent(mix)
    mean = pools.mean_charge(mix)
    spare = pools.window_blocks - 1 - pools.in_flight_blocks - concurrent * mean.window_blocks
    fraction = pools.balanced_fraction(mix)
    try:
        serving = replace(pools.serving, window_fraction=fraction)
        balanced = plan_pools(model.geometry, tp, serving, budgets).concurrent(mix)[0]
    except (PlanError, PoolSizeError):
        balanced = concurrent
    tails = int(spare // mean.window_blocks)
    return SplitAdvice(binding, concurrent, max(0, tails), fraction, balanced)


def graph_advice(
    sizes: Sequence[int], layers: int, pools: TwoPools, mix: Sequence[MixPart]
) -> GraphAdvice:
    """Which captured sizes the mix never reaches."""
    serving = pools.serving
    requests = min(pools.concurrent(mix)[0], serving.max_num_seqs)
    needed = max(1, requests) * (1 + serving.mtp)
    keep = min((size for size in sizes if size >= needed), default=max(sizes))
    unused = sum(size > keep for size in sizes)
    freed = graph_bytes(unused, layers)
    return GraphAdvice(
        len(sizes),
        graph_bytes(len(sizes), layers),
        max(sizes),
        needed,
        keep,
        unused,
        freed,
        int(freed / pools.mean_charge(mix).total_bytes * serving.pp),
    )


def _candidates(base: Placement) -> Iterator[tuple[int, int]]:
    for ep in (base.ep, base.ep // 2) if base.ep > 1 and base.ep % 2 == 0 else (base.ep,):
        tp = min(base.tp, ep) if base.ep > 1 else base.tp
        yield tp, ep
        if tp % 2 == 0 and ep > 1:
            yield tp // 2, ep


def _numbers(sizing: Sizing, mix: Sequence[MixPart]) -> Alternative:
    mean = sizing.pools.mean_charge(mix)
    placement, memory = sizing.placement, sizing.memory
    return Alternative(
        placement.tp,
        placement.ep,
        placement.instances,
        placement.replicas,
        max(memory.stage_weights(stage) for stage in range(placement.pp)),
        min(memory.budgets),
        mean.total_bytes,
        mean.window_bytes / mean.total_bytes,
        sizing.total_concurrent(mix),
    )
