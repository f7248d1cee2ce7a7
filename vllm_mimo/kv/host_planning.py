"""How many blocks each worker keeps in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_mimo.config import MimoConfig
from vllm_mimo.kv.sizing import PoolDemand
from vllm_mimo.kv.spec import TwoPoolConfig


def plan_host(
    demands: Sequence[PoolDemand], config: MimoConfig, configs: Sequence[TwoPoolConfig]
) -> None:
    """Add the block counts to each worker's config: the same, since ids are for all of them.

    Raises PoolSizeError where a worker's share is too small.
    """
    budget = int(config.host_gib * (1 << 30))
    splits = [
        demand.host_split(
            budget, config.host_swa_fraction, config.tail_interval, config.tail_dense_until
        )
        for demand in demands
    ]
    for made in configs:
        made.host_full_blocks = min(split.full_blocks for split in splits)
        made.host_window_blocks = min(split.window_blocks for split in splits)
