"""Makes a worker's part of the tiers: host memory, copy queues and the mover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from vllm_mimo.config import MimoConfig
from vllm_mimo.kv.spec import TwoPoolConfig
from vllm_mimo.native.host_memory import numa_node_of_device
from vllm_mimo.tiers.copies import CopyQueue, StreamCopies, ThreadCopies
from vllm_mimo.tiers.mover import TierMover
from vllm_mimo.tiers.regions import make_regions

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def make_mover(
    vllm_config: VllmConfig,
    tiers: TwoPoolConfig,
    kv_caches: Mapping[str, torch.Tensor],
    config: MimoConfig,
) -> TierMover:
    """A worker's mover; see `make_regions` for errors."""
    order = [
        name for name in vllm_config.compilation_config.static_forward_context if name in kv_caches
    ]
    device = next(iter(kv_caches.values())).device
    node = numa_node_of_device(device.index or 0) if device.type == "cuda" else None
    regions = make_regions(tiers, kv_caches, order, node)
    inbound: CopyQueue
    outbound: CopyQueue
    if regions.on_device:
        inbound, outbound = StreamCopies(), StreamCopies()
    else:
        inbound, outbound = ThreadCopies("kv-loads"), ThreadCopies("kv-stores")
    return TierMover(regions, inbound, outbound, config.tier_layerwise)
