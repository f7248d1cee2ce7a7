"""The settings of an engine that its KV cache depends on, and the lengths that are reported on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vllm_mimo.planner.inputs import MixPart, PlanError, format_tokens

KV_DTYPES = {"bf16": 2, "fp8": 1}
"""Bytes of an element of the KV cache."""

BLOCK_SIZE = 64
"""Tokens per KV block, as the plugin sets it; for both pools and for vLLM's own planning."""

BUCKETS = (0, 64 * 1024, 256 * 1024, 1024 * 1024)
"""Boundaries of the length buckets, in tokens; a bucket is counted at its upper end."""

DEFAULT_MIX = (MixPart(4096, 0.5), MixPart(32_768, 0.3), MixPart(131_072, 0.2))
"""Contexts of the running requests, where the user names none."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What an engine is started with. Tokens and requests are of one attention replica."""

    max_model_len: int
    batched_tokens: int
    max_num_seqs: int
    kv_dtype: str = "bf16"
    mtp: int = 0
    """MTP layers in use."""
    block_size: int = BLOCK_SIZE
    pp: int = 1
    window_fraction: float | None = None
    """The SWA pool's share of the KV bytes; None for the automatic split."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--max-model-len", self.max_model_len),
            ("--max-num-batched-tokens", self.batched_tokens),
            ("--max-num-seqs", self.max_num_seqs),
            ("--block-size", self.block_size),
        ):
            if value < 1:
                raise PlanError(f"{option} must be 1 or more, got {value}")
        if self.kv_dtype not in KV_DTYPES:
            raise PlanError(
                f"--kv-dtype '{self.kv_dtype}' is not known: choose one of {', '.join(KV_DTYPES)}"
            )
        if self.window_fraction is not None and not 0 < self.window_fraction < 1:
            raise PlanError(
                f"--swa-pool-fraction must be between 0 and 1, got {self.window_fraction:g}"
            )

    @property
    def dtype_bytes(self) -> int:
        return KV_DTYPES[self.kv_dtype]

    @property
    def batches_in_flight(self) -> int:
        """Steps that are scheduled but not settled: async scheduling is one ahead."""
        return self.pp + 1

    @property
    def in_flight_tokens(self) -> int:
        """Most tokens scheduled but not settled."""
        return self.batches_in_flight * self.batched_tokens

    @property
    def decoding_tokens(self) -> int:
        """Most tokens in flight of one decoding request, speculated ones included."""
        return self.batches_in_flight * (1 + self.mtp)

    @property
    def extra_window_tokens(self) -> int:
        """Tokens kept below the window: several MTP layers run over the last ones again."""
        return max(0, self.mtp - 1)


def buckets(max_model_len: int) -> Iterator[tuple[str, int]]:
    """Label and counted length of each bucket that `max_model_len` reaches into."""
    for low, high in pairwise(BUCKETS):
        if low < max_model_len:
            top = min(high, max_model_len)
            yield f"{format_tokens(low) if low else '0'}-{format_tokens(top)}", top
