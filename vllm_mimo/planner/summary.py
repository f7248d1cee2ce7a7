"""A plan as one plain object with every number: what `--json` prints and the report is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from vllm_mimo.planner import advice, comparison
from vllm_mimo.planner.gpus import Gpu
from vllm_mimo.planner.inputs import MixPart
from vllm_mimo.planner.models import PlannedModel
from vllm_mimo.planner.plan import Sizing
from vllm_mimo.planner.upstream import VllmPool
from vllm_mimo.planner.weights import checkpoint_bytes

SCHEMA = 1
"""Raised when a field changes its meaning or goes away."""


def summarize(
    model: PlannedModel,
    gpu: Gpu,
    sizing: Sizing,
    upstream: VllmPool | str,
    mix: Sequence[MixPart],
    utilization: float,
) -> dict[str, Any]:
    """Every number of a plan. `upstream` is why vLLM's part is missing, where it is.

    Bytes and blocks are of one rank, requests of one attention replica, unless a name says "total".
    """
    vllm = upstream if isinstance(upstream, VllmPool) else None
    return {
        "schema": SCHEMA,
        "model": _model(model),
        "gpu": {**_fields(gpu), "utilization": utilization, "usable": sizing.memory.usable},
        "placement": {
            **_fields(sizing.placement),
            **{n: getattr(sizing.placement, n) for n in ("dp", "instances", "replicas", "idle")},
        },
        "serving": {
            **_fields(sizing.pools.serving),
            "in_flight_tokens": sizing.pools.serving.in_flight_tokens,
            "context_mix": [_fields(part) for part in mix],
        },
        "memory": _memory(sizing),
        "pools": _pools(sizing),
        "vllm": _vllm(upstream),
        "requests": comparison.rows(sizing.pools, vllm, mix),
        "ratio": comparison.ratio(sizing.pools, vllm) if vllm else None,
        "advice": _advice(model, gpu, sizing, mix, utilization),
    }


def _fields(instance: Any) -> dict[str, Any]:
    return dataclasses.asdict(instance)


def _model(model: PlannedModel) -> dict[str, Any]:
    count, parts = checkpoint_bytes(model.config)
    swa = sum(model.geometry.layer_is_swa)
    return {
        "name": model.name,
        "full_layers": model.geometry.num_layers - swa,
        "window_layers": swa,
        "full_kv_heads": model.geometry.full.num_kv_heads,
        "window_kv_heads": model.geometry.swa.num_kv_heads,
        "experts": model.geometry.num_experts,
        "tensors": count,
        "checkpoint_bytes": sum(parts.values()),
        "checkpoint_parts": parts,
    }


def _memory(sizing: Sizing) -> dict[str, Any]:
    memory = sizing.memory
    return {
        "stages": [
            {"weights": parts, "weights_bytes": sum(parts.values()), "kv_bytes": budget}
            for parts, budget in zip(memory.weights, memory.budgets, strict=True)
        ],
        "others": [_fields(item) for item in memory.others],
        "graph_sizes": list(memory.graph_sizes),
        "kv_bytes_given": memory.given,
    }


def _pools(sizing: Sizing) -> dict[str, Any]:
    pools = sizing.pools
    return {
        "full_blocks": pools.full_blocks,
        "window_blocks": pools.window_blocks,
        "full_block_bytes": pools.full_block_bytes,
        "window_block_bytes": pools.window_block_bytes,
        "full_tokens": pools.full_tokens,
        "in_flight_blocks": pools.in_flight_blocks,
        "window_fraction": pools.window_fraction,
    }


def _vllm(upstream: VllmPool | str) -> dict[str, Any]:
    if not isinstance(upstream, VllmPool):
        return {"available": False, "reason": upstream}
    return {
        "available": True,
        "version": upstream.version,
        "num_blocks": upstream.num_blocks,
        "bytes_per_block": upstream.bytes_per_block,
        "groups": [_fields(group) for group in upstream.groups],
    }


def _advice(
    model: PlannedModel, gpu: Gpu, sizing: Sizing, mix: Sequence[MixPart], utilization: float
) -> dict[str, Any]:
    pools, placement = sizing.pools, sizing.placement
    found = advice.alternatives(model, gpu, placement, pools.serving, mix, utilization)
    whole = advice.best(found, placement.ep)
    half = advice.best(found, placement.ep // 2)
    can_halve = any(other.ep < placement.ep for other in found)
    layers = -(-model.geometry.num_layers // placement.pp) + pools.serving.mtp
    return {
        "alternatives": [_fields(alternative) for alternative in found],
        "half_ep_is_enough": (
            advice.is_enough(half, whole, pools.serving.max_num_seqs) if can_halve else None
        ),
        "best_whole_ep": None if whole is None else _fields(whole),
        "best_half_ep": None if half is None else _fields(half),
        "split": _fields(
            advice.split_advice(pools, model, placement.tp, mix, sizing.memory.budgets)
        ),
        "cuda_graphs": _fields(advice.graph_advice(sizing.memory.graph_sizes, layers, pools, mix)),
    }
