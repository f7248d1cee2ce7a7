"""What a user may choose about the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_mimo.config import MimoConfig
from vllm_mimo.kv.eviction import DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What a user may choose about the prefix cache; see the keys in docs/configuration.md."""

    replay: bool = True
    eviction: str = DEFAULT_POLICY
    """Name in `vllm_mimo.kv.eviction.POLICIES`."""
    tail_interval: int = 0
    dense_until: int = 0

    @classmethod
    def from_config(cls, config: MimoConfig) -> CachePolicy:
        """What the plugin's keys say."""
        return cls(
            replay=config.bounded_replay,
            eviction=config.eviction,
            tail_interval=config.tail_interval,
            dense_until=config.tail_dense_until,
        )


DEFAULTS = CachePolicy()
