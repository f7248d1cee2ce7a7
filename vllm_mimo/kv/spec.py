"""The two kinds of KV as vLLM's specs, and the config that places them in one buffer.

The scheduler finds a group's manager by its spec's class, so each pool has a class of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheTensor,
    SlidingWindowSpec,
)

from vllm_mimo.kv.groups import WINDOW_GROUP
from vllm_mimo.kv.sizing import running_blocks


@dataclass(frozen=True, kw_only=True)
class FullPoolSpec(FullAttentionSpec):
    """Full-attention layers, whose blocks are numbered in a space of their own."""


@dataclass(frozen=True, kw_only=True)
class WindowPoolSpec(SlidingWindowSpec):
    """SWA layers, whose blocks are numbered in a space of their own."""

    pool_blocks: int = 0
    """Blocks of the SWA pool, its null block included."""
    window_layers: int = 0
    """SWA layers of the whole model, over all pipeline stages: each widens a replay."""

    def max_admission_blocks_per_request(
        self, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Most blocks that a running request holds; see `running_blocks`."""
        return running_blocks(
            self.sliding_window,
            self.block_size,
            max_in_flight_tokens,
            self.extra_retained_tokens,
            max_model_len,
        )

    @property
    def replay_bound(self) -> int:
        """Tokens that a resume without a tail recomputes at most (docs/kv.md, Bounded replay)."""
        return self.window_layers * (self.sliding_window - 1)


@dataclass
class TwoPoolConfig(KVCacheConfig):
    """KV cache config whose SWA tensors have fewer blocks than `num_blocks`."""

    window_blocks: int = 0
    window_layers: frozenset[str] = frozenset()
    host_full_blocks: int = 0
    """Full-attention blocks that each worker keeps in host memory."""
    host_window_blocks: int = 0
    """SWA blocks there."""

    @property
    def needs_kv_cache_zeroing(self) -> bool:
        """Never: no block passes from one kind of layer to the other, whatever their precision.

        vLLM zeroes by block id without a pool, which would hit live blocks of the other one.
        """
        return False

    def num_blocks_of(self, tensor: KVCacheTensor) -> int:
        """Blocks of the pool that backs a tensor."""
        if tensor.layers and tensor.layers[0] in self.window_layers:
            return self.window_blocks
        return super().num_blocks_of(tensor)


def has_two_pools(config: KVCacheConfig) -> bool:
    """Whether the groups of a config are ours."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    return len(specs) == 2 and isinstance(specs[WINDOW_GROUP], WindowPoolSpec)
