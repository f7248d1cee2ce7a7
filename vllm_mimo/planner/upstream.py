"""What vLLM's own planning makes of the same model and bytes, computed by vLLM's own functions.

Grouping, padding of groups, unification of page sizes and the bytes of a block come out of vLLM; a
stand-in holds the few settings that those functions read. A request is charged in two ways:
*reserved* as vLLM's start-up check and its admission of a request do (its SWA groups with every
token in flight), and *settled* as it is while decoding, with the tokens in flight counted once.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.compat import (
    KV_PLANNING_MODULES,
    UnsupportedVllmError,
    check_vllm_version,
    import_first,
)
from vllm_mimo.planner.inputs import MixPart
from vllm_mimo.planner.placement import stage_layers
from vllm_mimo.planner.serving import Serving

LAYOUT = "LBNHC"
"""The KV layout that vLLM takes where no attention backend asks for another, as DiffKV's do not."""

How = Literal["reserved", "settled"]


class UpstreamUnavailable(RuntimeError):
    """vLLM is missing, or does not plan this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table, in one of vLLM's KV cache groups."""

    kind: str
    """"full" or "SWA"."""
    layers: int
    block_size: int
    """Tokens per block."""


@dataclass(frozen=True, slots=True)
class VllmPool:
    """vLLM's one pool. Make it with `plan_upstream`."""

    version: str
    num_blocks: int
    """Blocks, the null block included."""
    bytes_per_block: int
    """Bytes that a block id takes on all stages, padding included."""
    groups: tuple[Group, ...]
    serving: Serving
    _specs: tuple[Any, ...] = field(repr=False, default=())

    def blocks(self, tokens: int, how: How) -> tuple[int, int]:
        """Blocks (of full groups, of SWA groups) of one request, charged as `how` says."""
        serving = self.serving
        in_flight = serving.in_flight_tokens if how == "reserved" else serving.decoding_tokens
        config = stand_in(serving, tokens, in_flight)
        found = {"full": 0, "SWA": 0}
        for group, spec in zip(self.groups, self._specs, strict=True):
            size = spec.max_memory_usage_bytes(config)
            found[group.kind] += -(-size // spec.page_size_bytes)
        return found["full"], found["SWA"]

    def request_bytes(self, tokens: int, how: How) -> tuple[int, int]:
        """Bytes (full, SWA) of one request on a rank, all pipeline stages together."""
        full, window = self.blocks(tokens, how)
        return full * self.bytes_per_block, window * self.bytes_per_block

    def concurrent(self, mix: Sequence[MixPart], how: How) -> int:
        """Most requests of `mix` at once: vLLM's maximum concurrency, for several lengths."""
        mean = sum(part.share * sum(self.blocks(part.tokens, how)) for part in mix)
        if how == "reserved":
            return int(self.num_blocks / mean)
        in_flight = sum(
            -(-self.serving.in_flight_tokens // group.block_size)
            for group in self.groups
            if group.kind == "SWA"
        )
        return max(0, int((self.num_blocks - 1 - in_flight) / mean))


def stand_in(serving: Serving, max_model_len: int, in_flight_tokens: int) -> Any:
    """An object with what vLLM's planning reads of a `VllmConfig`."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=max_model_len, supports_kv_cache_grouping=False),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[LAYOUT],
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=0,
        ),
        max_in_flight_tokens=in_flight_tokens,
    )


def layer_specs(geometry: TextGeometry, tp: int, serving: Serving) -> dict[str, Any]:
    """vLLM's KV cache spec of every layer, MTP layers last."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    def common(attention: AttentionGeometry) -> dict[str, Any]:
        return {
            "block_size": serving.block_size,
            "num_kv_heads": max(1, attention.num_kv_heads // tp),
            "head_size": attention.head_dim,
            "head_size_v": attention.v_head_dim,
            "dtype": torch.bfloat16 if serving.dtype_bytes == 2 else torch.uint8,
        }

    full = FullAttentionSpec(**common(geometry.full))
    window = SlidingWindowSpec(
        **common(geometry.swa),
        sliding_window=geometry.swa.window,
        extra_retained_tokens=serving.extra_window_tokens,
        dcp_sharded=False,
    )
    kinds = [*geometry.layer_is_swa, *[True] * serving.mtp]
    return {f"layers.{i}": window if is_swa else full for i, is_swa in enumerate(kinds)}


def plan_upstream(
    geometry: TextGeometry, tp: int, serving: Serving, budgets: Sequence[int]
) -> VllmPool:
    """vLLM's plan for `budgets`, bytes of KV on a rank of each stage.

    Raises UpstreamUnavailable without a supported vLLM, or where its planning fails.
    """
    with _quiet():
        try:
            version = check_vllm_version()
            planning = import_first(KV_PLANNING_MODULES)
            specs = layer_specs(geometry, tp, serving)
        except (UnsupportedVllmError, ImportError) as error:
            raise UpstreamUnavailable(str(error).split("\n")[0]) from None
        try:
            groups, num_blocks, bytes_per_block = _run(planning, geometry, specs, serving, budgets)
        except Exception as error:  # vLLM's own, on a model or a release that we do not know
            raise UpstreamUnavailable(
                f"vLLM {version}'s planning failed: {type(error).__name__}: {error}"
            ) from error
    return VllmPool(
        version,
        num_blocks,
        bytes_per_block,
        tuple(
            Group(
                "SWA" if hasattr(group.kv_cache_spec, "extra_retained_tokens") else "full",
                len(group.layer_names),
                group.kv_cache_spec.block_size,
            )
            for group in groups
        ),
        serving,
        tuple(group.kv_cache_spec for group in groups),
    )


def _run(
    planning: Any,
    geometry: TextGeometry,
    specs: dict[str, Any],
    serving: Serving,
    budgets: Sequence[int],
) -> tuple[list[Any], int, int]:
    """vLLM's groups, its blocks, and the bytes of one on all stages."""
    config = stand_in(serving, serving.max_model_len, serving.in_flight_tokens)
    groups = planning.get_kv_cache_groups(config, specs)
    num_blocks, bytes_per_block = [], 0
    for budget, names in zip(budgets, _stage_names(geometry, serving), strict=True):
        projected = [
            type(group)([n for n in group.layer_names if n in names], group.kv_cache_spec)
            for group in groups
        ]
        made = planning.get_kv_cache_config_from_groups(config, projected, budget)
        num_blocks.append(made.num_blocks)
        bytes_per_block += made.kv_cache_tensors[0].size // made.num_blocks
    return groups, min(num_blocks), bytes_per_block


def _stage_names(geometry: TextGeometry, serving: Serving) -> list[set[str]]:
    stages = stage_layers(geometry.num_layers, serving.pp)
    names = [{f"layers.{layer}" for layer in layers} for layers in stages]
    names[-1] |= {f"layers.{geometry.num_layers + i}" for i in range(serving.mtp)}
    return names


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without vLLM's log lines, and with what it prints kept off standard output."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(before)
