"""Where the KV of each layer lies in a worker: in the device's buffer and in host memory.

Host memory holds a block's layers side by side, so that a block of all layers is one value for L3
and one layer of it is contiguous. Both kinds of KV have a buffer of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.spec import TwoPoolConfig
from vllm_mimo.native.blocks import BlockView, storage_bytes
from vllm_mimo.native.host_memory import host_buffer


class TierLayoutError(ValueError):
    """A KV layout whose blocks are not contiguous in a layer; the message names it."""


@dataclass(frozen=True, slots=True)
class LayerRegion:
    """One attention layer's blocks."""

    name: str
    group: int
    device: BlockView
    host: BlockView


@dataclass(frozen=True, slots=True)
class TierRegions:
    """All layers of a worker, in the order in which a step runs them."""

    layers: tuple[LayerRegion, ...]
    hosts: tuple[torch.Tensor, torch.Tensor]
    """For each group (blocks, layers, bytes of a layer's block) uint8 in host memory."""
    on_device: bool
    """Whether KV is in the memory of a GPU."""

    def value(self, group: int, block: int) -> memoryview:
        """The bytes of a host block, all layers."""
        return memoryview(self.hosts[group][block].numpy()).cast("B")

    def block_bytes(self, group: int) -> int:
        """Bytes of a block over this worker's layers."""
        return self.hosts[group][0].numel()


def make_regions(
    config: TwoPoolConfig,
    kv_caches: Mapping[str, torch.Tensor],
    order: Sequence[str],
    numa_node: int | None = None,
) -> TierRegions:
    """Allocate host memory for a worker and find its layers' blocks.

    Args:
        config: the worker's, with the block counts of host memory.
        kv_caches: the device's tensors by layer name.
        order: layer names in the order in which a step runs them.
        numa_node: where host memory is to be.

    Raises TierLayoutError; MemoryError where the machine has less memory.
    """
    on_device = any(tensor.is_cuda for tensor in kv_caches.values())
    found: dict[str, LayerRegion] = {}
    hosts = []
    for group, blocks in (
        (FULL_GROUP, config.host_full_blocks),
        (WINDOW_GROUP, config.host_window_blocks),
    ):
        own = config.kv_cache_groups[group]
        page = own.kv_cache_spec.page_size_bytes
        names = [name for name in order if name in own.layer_names]
        # One more: vLLM's pools never hand out block 0.
        host = host_buffer(
            (blocks + 1, max(1, len(names)), page), pinned=on_device, numa_node=numa_node
        )
        hosts.append(host)
        storage = storage_bytes(host)
        for place, name in enumerate(names):
            found[name] = LayerRegion(
                name=name,
                group=group,
                device=_device_view(config, name, kv_caches[name], page),
                host=BlockView(storage, place * page, host[0].numel(), page, blocks + 1),
            )
    return TierRegions(
        tuple(found[name] for name in order if name in found), (hosts[0], hosts[1]), on_device
    )


def _device_view(config: TwoPoolConfig, name: str, cache: torch.Tensor, page: int) -> BlockView:
    for tensor in config.kv_cache_tensors:
        if name in tensor.layers:
            break
    else:
        raise TierLayoutError(f"layer {name} has no place in the KV cache's buffer")
    storage = storage_bytes(cache)
    offset = tensor.offset + tensor.layers.index(name) * tensor.layer_stride
    start = cache.data_ptr() - storage.data_ptr()
    if start != offset or tensor.block_stride < page:
        raise TierLayoutError(
            f"layer {name}: the KV cache's layout puts block 0 at byte {start} with "
            f"{tensor.block_stride} bytes a block; whole blocks of {page} bytes from byte {offset} "
            "on are needed. Leave VLLM_KV_CACHE_LAYOUT unset, or 'host_gib' at 0"
        )
    return BlockView(storage, offset, tensor.block_stride, page, config.num_blocks_of(tensor))
