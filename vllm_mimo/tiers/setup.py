"""Makes a worker's part of the tiers: host memory, copy queues and the mover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from vllm_mimo.config import MimoConfig
from vllm_mimo.kv.planning import block_bytes
from vllm_mimo.kv.spec import TwoPoolConfig
from vllm_mimo.l3.client import L3Client
from vllm_mimo.l3.open import open_client
from vllm_mimo.l3.settings import L3Settings
from vllm_mimo.native.host_memory import numa_node_of_device
from vllm_mimo.tiers.copies import CopyQueue, StreamCopies, ThreadCopies
from vllm_mimo.tiers.director import TierDirector
from vllm_mimo.tiers.fingerprint import fingerprint, rank_name
from vllm_mimo.tiers.l3_io import L3Mover
from vllm_mimo.tiers.mover import TierMover
from vllm_mimo.tiers.regions import make_regions
from vllm_mimo.tiers.remote import RemoteTier

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
    remote = None
    if config.l3 is not None:
        client = open_l3(vllm_config, tiers, config.l3, vllm_config.parallel_config.rank)
        remote = L3Mover(client, regions) if client is not None else None
    return TierMover(regions, inbound, outbound, config.tier_layerwise, remote)


def open_l3(
    vllm_config: VllmConfig, tiers: TwoPoolConfig, raw: Mapping[str, Any], rank: int
) -> L3Client | None:
    """A client of L3 for one rank; None, with a warning, where it cannot be used."""
    digest = fingerprint(vllm_config, tiers)
    return open_client(L3Settings.parse(raw), digest, rank_name(vllm_config, rank))


def make_remote(
    vllm_config: VllmConfig, tiers: TwoPoolConfig, config: MimoConfig, director: TierDirector
) -> None:
    """Put L3 below a director's host memory, where it is asked for and can be used."""
    if config.l3 is None:
        return
    client = open_l3(vllm_config, tiers, config.l3, 0)
    if client is None:
        return
    bytes_of = tuple(block_bytes(group) for group in tiers.kv_cache_groups)
    director.use_remote(
        lambda d: RemoteTier(
            client,
            d.manager,
            d.hosts,
            (bytes_of[0], bytes_of[1]),
            d.with_remote,
            d.operations.begin_in_background,
            config.tier_keep_alive,
        )
    )
