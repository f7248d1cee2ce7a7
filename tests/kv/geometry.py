"""Small pools and requests for the cache manager, without an engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.request import Request

from vllm_mimo.kv.cache_policy import CachePolicy
from vllm_mimo.kv.eviction import DEFAULT_POLICY
from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.sizing import running_blocks
from vllm_mimo.kv.spec import FullPoolSpec, TwoPoolConfig, WindowPoolSpec

init_none_hash(sha256)


@dataclass(frozen=True)
class Geometry:
    """A model's attention, its two pools and the engine's limits.

    `spare_full` and `spare_window` are the blocks beyond what one request needs at most.
    """

    block: int = 16
    window_block: int = 16
    window: int = 33
    layers: int = 3
    """SWA layers; full-attention layers stand before, between and after them."""
    spare_full: int = 16
    spare_window: int = 8
    longest: int = 512
    """Tokens of the longest request."""
    budget: int = 64
    """Most tokens of one step."""
    replay: bool = True
    eviction: str = DEFAULT_POLICY
    tail_interval: int = 0
    dense_until: int = 0
    watermark: float = 0.0
    depth: int = 2
    """Steps in flight at most: 2 with asynchronous scheduling."""
    defer: bool = False
    """Whether blocks of requests in flight are freed only after their step, as with connectors."""

    @property
    def bound(self) -> int:
        """Tokens after which a replay is exact."""
        return self.layers * (self.window - 1)

    @property
    def in_flight(self) -> int:
        return self.depth * self.budget

    @property
    def full_blocks(self) -> int:
        return -(-self.longest // self.block) + 1 + self.spare_full

    @property
    def window_blocks(self) -> int:
        return (
            running_blocks(self.window, self.window_block, self.in_flight) + 1 + self.spare_window
        )

    def config(self) -> TwoPoolConfig:
        shape = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        full = FullPoolSpec(block_size=self.block, **shape)
        window = WindowPoolSpec(
            block_size=self.window_block,
            sliding_window=self.window,
            pool_blocks=self.window_blocks,
            window_layers=self.layers,
            **shape,
        )
        names = frozenset(f"swa{i}" for i in range(self.layers))
        return TwoPoolConfig(
            num_blocks=self.full_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"full{i}" for i in range(self.layers + 1)], full),
                KVCacheGroupSpec(sorted(names), window),
            ],
            prefix_cache_retention_interval=0,
            window_blocks=self.window_blocks,
            window_layers=names,
        )

    def manager(self, clock: Callable[[], float], caching: bool = True) -> MimoKVCacheManager:
        return MimoKVCacheManager(
            self.config(),
            policy=CachePolicy(
                replay=self.replay,
                eviction=self.eviction,
                tail_interval=self.tail_interval,
                dense_until=self.dense_until,
            ),
            clock=clock,
            max_model_len=self.longest,
            max_in_flight_tokens=self.in_flight,
            enable_caching=caching,
            scheduler_block_size=self.block,
            hash_block_size=self.window_block,
            watermark=self.watermark,
        )


_names = itertools.count()


def make_request(tokens: Sequence[int], max_tokens: int, hash_block: int) -> Request:
    """A request as the engine makes it."""
    return Request(
        request_id=f"r{next(_names)}",
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=get_request_block_hasher(hash_block, sha256),
    )


def text(seed: int, length: int) -> list[int]:
    """`length` tokens of a tiny alphabet; the same seed gives the same start."""
    state, tokens = seed * 2654435761 + 12345, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        tokens.append(state >> 16 & 3)
    return tokens
