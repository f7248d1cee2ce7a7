"""From layers and bytes to the two pools of every worker: vLLM's planning, with two id spaces.

All workers must agree on both block counts, since the scheduler hands out ids for all of them;
pipeline stages have layers of their own and need not have the same bytes per block.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    SlidingWindowSpec,
    compute_layout_strides,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from vllm_mimo.compat import KV_PLANNING_MODULES, import_first
from vllm_mimo.config import MimoConfig, from_vllm_config
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.host_planning import plan_host
from vllm_mimo.kv.sizing import PoolDemand, PoolSizeError, PoolSplit
from vllm_mimo.kv.spec import FullPoolSpec, TwoPoolConfig, WindowPoolSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.vllm_mimo")

S = TypeVar("S", bound=KVCacheSpec)


class KVLayersError(ValueError):
    """A model whose attention layers do not fit two pools; the message names the layer."""


def two_pool_groups(
    vllm_config: VllmConfig, layers: Mapping[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    """One group of all full-attention layers and one of all SWA layers, in this order.

    Raises KVLayersError where a layer is neither, or layers of a kind differ.
    """
    full = {n: s for n, s in layers.items() if type(s) is FullAttentionSpec}
    window = {n: s for n, s in layers.items() if type(s) is SlidingWindowSpec}
    for name, spec in layers.items():
        if name not in full and name not in window:
            raise KVLayersError(f"layer {name} keeps {type(spec).__name__}: no place in two pools")
    for kind, specs in (("full-attention", full), ("SWA", window)):
        if not specs:
            raise KVLayersError(f"the model has no {kind} layer: two pools need both kinds")
        first = next(iter(specs.values()))
        for name, spec in specs.items():
            if spec != first:
                raise KVLayersError(f"{kind} layer {name} differs from the others: {spec}")
    full_spec = _as(FullPoolSpec, next(iter(full.values())))
    window_spec = _as(
        WindowPoolSpec,
        next(iter(window.values())),
        window_layers=len(window),
        block_size=_window_block_size(vllm_config, full_spec.block_size),
        extra_retained_tokens=max(0, vllm_config.num_prefill_lookahead_tokens - 1),
    )
    groups = [KVCacheGroupSpec(list(full), full_spec), KVCacheGroupSpec(list(window), window_spec)]
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.use_eagle_block_drop():
        groups[WINDOW_GROUP].is_eagle_group = True
    return groups


def _window_block_size(vllm_config: VllmConfig, full_block_size: int) -> int:
    """Tokens per SWA block: the user's, or as many as in a full-attention block."""
    size = from_vllm_config(vllm_config).swa_block_size or full_block_size
    if full_block_size % size:
        raise PoolSizeError(
            f"mimo config: 'swa_block_size' is {size}, which does not divide the full-attention "
            f"block size {full_block_size} (--block-size)"
        )
    return size


def _as(kind: type[S], spec: KVCacheSpec, **more: object) -> S:
    values = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.init}
    return kind(**(values | more))


def two_pool_configs(
    vllm_config: VllmConfig,
    worker_layers: Sequence[Mapping[str, KVCacheSpec]],
    available_bytes: Sequence[int],
) -> list[TwoPoolConfig]:
    """The KV cache config of every worker, with the same block counts in all.

    Raises KVLayersError, or PoolSizeError where a worker's bytes cannot hold one request of the
    model's `max_model_len` (which is reduced first where the user asked for that with -1).
    """
    merged = {name: spec for layers in worker_layers for name, spec in layers.items()}
    groups = two_pool_groups(vllm_config, merged)
    projected = [_project(groups, layers) for layers in worker_layers]
    config = from_vllm_config(vllm_config)
    model = vllm_config.model_config
    if model.original_max_model_len == -1:
        model.max_model_len = _fitting_length(vllm_config, projected, available_bytes, config)
        logger.info("max_model_len is %d: what fits the KV cache", model.max_model_len)
    splits = [
        _split(vllm_config, own, size, config)
        for own, size in zip(projected, available_bytes, strict=True)
    ]
    full_blocks = min(split.full_blocks for split in splits)
    window_blocks = min(split.window_blocks for split in splits)
    configs = [_materialize(vllm_config, own, full_blocks, window_blocks) for own in projected]
    if config.host_gib:
        plan_host([demand(vllm_config, own) for own in projected], config, configs)
    return configs


def _project(
    groups: Sequence[KVCacheGroupSpec], layers: Mapping[str, KVCacheSpec]
) -> list[KVCacheGroupSpec]:
    """The groups with one worker's layers only."""
    return [
        KVCacheGroupSpec(
            [name for name in group.layer_names if name in layers],
            group.kv_cache_spec,
            is_eagle_group=group.is_eagle_group,
        )
        for group in groups
    ]


def block_bytes(group: KVCacheGroupSpec) -> int:
    """Bytes of one block over the group's layers."""
    return len(group.layer_names) * _page(group.kv_cache_spec)


def _page(spec: KVCacheSpec) -> int:
    alignment = spec.get_block_stride_alignment()
    return -(-spec.page_size_bytes // alignment) * alignment


def demand(vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> PoolDemand:
    """What one worker's pools are planned for."""
    window = groups[WINDOW_GROUP].kv_cache_spec
    assert isinstance(window, WindowPoolSpec)
    return PoolDemand(
        full_block_size=groups[FULL_GROUP].kv_cache_spec.block_size,
        window_block_size=window.block_size,
        full_block_bytes=max(1, block_bytes(groups[FULL_GROUP])),
        window_block_bytes=max(1, block_bytes(groups[WINDOW_GROUP])),
        window=window.sliding_window,
        max_model_len=vllm_config.model_config.max_model_len,
        in_flight_tokens=vllm_config.max_in_flight_tokens,
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        extra_window_tokens=window.extra_retained_tokens,
    )


def _split(
    vllm_config: VllmConfig, groups: Sequence[KVCacheGroupSpec], size: int, config: MimoConfig
) -> PoolSplit:
    """Both pools of one worker; block counts that the user set replace what bytes would give."""
    wanted = demand(vllm_config, groups)
    window_blocks = config.swa_pool_blocks
    full_blocks = vllm_config.cache_config.num_gpu_blocks_override
    if window_blocks is not None or full_blocks is not None:
        # A count that is set is checked as if the bytes were made for it.
        if window_blocks is None:
            window_blocks = wanted.split(size, config.swa_pool_fraction).window_blocks
        if full_blocks is None:
            rest = size - window_blocks * wanted.window_block_bytes
            full_blocks = max(0, rest // wanted.full_block_bytes)
        wanted.check(full_blocks, window_blocks)
        return PoolSplit(
            full_blocks, window_blocks, wanted.full_block_bytes, wanted.window_block_bytes
        )
    return wanted.split(size, config.swa_pool_fraction)


def _fitting_length(
    vllm_config: VllmConfig,
    projected: Sequence[Sequence[KVCacheGroupSpec]],
    available_bytes: Sequence[int],
    config: MimoConfig,
) -> int:
    """Longest request that every worker can hold, by bisection."""
    model = vllm_config.model_config
    longest = model.max_model_len

    def fits(length: int) -> bool:
        model.max_model_len = length
        try:
            for groups, size in zip(projected, available_bytes, strict=True):
                _split(vllm_config, groups, size, config)
        except PoolSizeError:
            return False
        finally:
            model.max_model_len = longest
        return True

    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return max(low, 1)  # where not even one token fits, the split says so


def _materialize(
    vllm_config: VllmConfig,
    groups: Sequence[KVCacheGroupSpec],
    full_blocks: int,
    window_blocks: int,
) -> TwoPoolConfig:
    """Both regions in one buffer, the SWA region first.

    First, because vLLM's warm-up hands the same ids to every group: ids beyond the SWA pool then
    land in the full region, which is empty, and not outside the buffer.
    """
    full, window = groups
    spec = window.kv_cache_spec
    assert isinstance(spec, WindowPoolSpec)
    window = dataclasses.replace(
        window, kv_cache_spec=dataclasses.replace(spec, pool_blocks=window_blocks)
    )
    layout = vllm_config.cache_config.get_resolved_kv_cache_layout()
    window_bytes = window_blocks * block_bytes(window)
    size = window_bytes + full_blocks * block_bytes(full)
    tensors = [
        _place(window, window_blocks, layout, size, 0),
        _place(full, full_blocks, layout, size, window_bytes),
    ]
    groups = [full, window]
    made = TwoPoolConfig(
        num_blocks=full_blocks,
        kv_cache_tensors=[tensor for tensor in tensors if tensor.layers],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=0,
        window_blocks=window_blocks,
        window_layers=frozenset(window.layer_names),
    )
    parallel = vllm_config.parallel_config
    made.kv_tp_replicas = import_first(KV_PLANNING_MODULES).kv_cache_groups_tp_replicas(
        groups, parallel.tensor_parallel_size, parallel.decode_context_parallel_size
    )
    return made


def _place(
    group: KVCacheGroupSpec, blocks: int, layout: KVCacheLayout, size: int, offset: int
) -> KVCacheTensor:
    """A group's layers in its region of the buffer, in the layout that the backends asked for."""
    page = _page(group.kv_cache_spec)
    if layout.is_block_outermost:
        block_stride: int | None = block_bytes(group)
    else:
        block_stride = page if page != group.kv_cache_spec.page_size_bytes else None
    layer_stride, block_stride, *_ = compute_layout_strides(
        group.kv_cache_spec,
        blocks,
        max(1, len(group.layer_names)),
        layout,
        fixed_strides=(None, block_stride, None, None, None),
    )
    return KVCacheTensor(
        size=size,
        layers=group.layer_names,
        layer_stride=layer_stride,
        block_stride=block_stride,
        offset=offset,
    )


def concurrency(vllm_config: VllmConfig, config: TwoPoolConfig) -> float:
    """Requests of `max_model_len` tokens that both pools hold at once."""
    wanted = demand(vllm_config, config.kv_cache_groups)
    return min(
        (config.num_blocks - 1) / wanted.full_blocks_per_request,
        (config.window_blocks - 1) / wanted.window_blocks_per_request,
    )
