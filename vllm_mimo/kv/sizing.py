"""How large the two KV pools are, in plain arithmetic without vLLM.

Sizes are of one rank. A "tail" is the SWA KV of the last `window - 1` tokens before a position:
with it a later request resumes there without recomputing anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry

TYPICAL_CONTEXT = 131_072
"""Tokens per cached session that the automatic split assumes, where the model allows as many.

Agentic sessions are so long (a mean prompt of 122K tokens in weka_agentic). Hit rates there differ
by 0.2 points between 1.2 and 6 % of the bytes for the SWA pool (docs/replay.md)."""

TAILS_PER_SESSION = 2
"""Tails that the automatic split gives each cached session beside its running window."""


RUNNING_SHARE = 0.04
"""Most of the bytes that the automatic split gives to the windows of `max_num_seqs` requests."""


class PoolSizeError(ValueError):
    """A KV budget that cannot hold one request; the message gives the sizes."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Bytes of KV that one rank keeps per token, for each kind of layer."""

    full_bytes: int
    """Bytes per token over all full-attention layers of the rank."""
    window_bytes: int
    """Bytes per token over all SWA layers of the rank, and over MTP layers in use."""
    window: int
    """Keys a query of an SWA layer sees, itself included."""
    window_layers: int
    """SWA layers (and MTP layers in use) that a hidden state passes: each widens a replay."""

    @property
    def replay_bound(self) -> int:
        """Tokens after which a replay without a tail is exact: W - 1 for each SWA layer."""
        return self.window_layers * (self.window - 1)

    @classmethod
    def from_geometry(
        cls, geometry: TextGeometry, tensor_parallel: int = 1, dtype_bytes: int = 2, mtp: int = 0
    ) -> KVShape:
        """The shape of one of `tensor_parallel` ranks, with `mtp` MTP layers in use."""
        windows = sum(geometry.layer_is_swa) + mtp
        fulls = geometry.num_layers - sum(geometry.layer_is_swa)
        assert geometry.swa.window is not None
        return cls(
            full_bytes=fulls * _bytes_per_token(geometry.full, tensor_parallel) * dtype_bytes,
            window_bytes=windows * _bytes_per_token(geometry.swa, tensor_parallel) * dtype_bytes,
            window=geometry.swa.window,
            window_layers=windows,
        )


def _bytes_per_token(attention: AttentionGeometry, tensor_parallel: int) -> int:
    """Elements of K and V that one rank keeps per token and layer (heads are never split)."""
    heads = max(1, attention.num_kv_heads // tensor_parallel)
    return heads * (attention.head_dim + attention.v_head_dim)


def tail_blocks(window: int, block_size: int) -> int:
    """Blocks that hold the `window - 1` tokens before a block boundary."""
    return -(-(window - 1) // block_size)


def running_blocks(
    window: int,
    block_size: int,
    in_flight_tokens: int,
    extra: int = 0,
    max_model_len: int | None = None,
) -> int:
    """Most SWA blocks that one running request holds: its window and the tokens in flight.

    The window is that of the last whole block's end, so that a tail is there whenever the request
    ends; up to a block less one token and the tokens in flight come on top. `extra` tokens below
    the window are kept for multi-module MTP. No more tokens are in flight than `max_model_len`
    leaves beside the window.
    """
    below = window - 1 + extra
    if max_model_len is not None:
        in_flight_tokens = max(0, min(in_flight_tokens, max_model_len - below))
    return -(-below // block_size) + -(-(block_size - 1 + in_flight_tokens) // block_size)


@dataclass(frozen=True, slots=True)
class PoolSplit:
    """Blocks of both pools, null blocks included."""

    full_blocks: int
    window_blocks: int
    full_block_bytes: int
    window_block_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.full_blocks * self.full_block_bytes + self.window_bytes

    @property
    def window_bytes(self) -> int:
        return self.window_blocks * self.window_block_bytes


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What the pools are planned for. Bytes and blocks are of one rank."""

    full_block_size: int
    window_block_size: int
    full_block_bytes: int
    window_block_bytes: int
    window: int
    max_model_len: int
    in_flight_tokens: int
    """Most tokens scheduled but not settled: one batch per step in flight."""
    max_num_seqs: int
    extra_window_tokens: int = 0

    @property
    def full_blocks_per_request(self) -> int:
        """Full blocks of a request of `max_model_len` tokens."""
        return -(-self.max_model_len // self.full_block_size)

    @property
    def window_blocks_per_request(self) -> int:
        """Most SWA blocks of one request."""
        return running_blocks(
            self.window,
            self.window_block_size,
            self.in_flight_tokens,
            self.extra_window_tokens,
            self.max_model_len,
        )

    def split(self, budget: int, window_fraction: float | None = None) -> PoolSplit:
        """Divide `budget` bytes.

        `window_fraction` is the SWA pool's share of the bytes; None chooses it so that sessions of
        TYPICAL_CONTEXT tokens (or `max_model_len`, if that is less) and their tails fill both pools
        at the same time, after the tokens in flight got their slots; or so that `max_num_seqs`
        requests can run, if that takes more but no more than RUNNING_SHARE. Either way the SWA pool
        holds at least one request. Raises PoolSizeError where the rest cannot hold a request of
        `max_model_len` tokens.
        """
        least = self.window_blocks_per_request + 1
        if window_fraction is None:
            # Never at the price of the longest request.
            one_request = (self.full_blocks_per_request + 1) * self.full_block_bytes
            most = max(0, budget - one_request) // self.window_block_bytes
            blocks = min(self._automatic_window_blocks(budget), most)
        else:
            blocks = int(budget * window_fraction) // self.window_block_bytes
        window_blocks = max(blocks, least)
        full_blocks = (budget - window_blocks * self.window_block_bytes) // self.full_block_bytes
        self.check(full_blocks, window_blocks, budget)
        return PoolSplit(full_blocks, window_blocks, self.full_block_bytes, self.window_block_bytes)

    def host_split(
        self, budget: int, window_fraction: float | None, tail_interval: int, dense_until: int
    ) -> PoolSplit:
        """Divide `budget` bytes of host memory, where no request runs.

        `window_fraction` as in `split`; `tail_interval` and `dense_until` say how many tails a
        session keeps near its start. Raises PoolSizeError where no tail or no full block fits.
        """
        tail = tail_blocks(self.window, self.window_block_size)
        if window_fraction is None:
            context = min(TYPICAL_CONTEXT, self.max_model_len)
            dense = min(context, dense_until) // tail_interval if tail_interval else 0
            full = -(-context // self.full_block_size) * self.full_block_bytes
            window = (TAILS_PER_SESSION + dense) * tail * self.window_block_bytes
            window_fraction = window / (full + window)
        window_blocks = max(int(budget * window_fraction) // self.window_block_bytes, tail)
        full_blocks = (budget - window_blocks * self.window_block_bytes) // self.full_block_bytes
        if full_blocks < 1:
            raise PoolSizeError(
                f"mimo config: 'host_gib' gives {budget:,} bytes, but a full-attention block of "
                f"{self.full_block_bytes:,} and a tail of {tail} SWA blocks of "
                f"{self.window_block_bytes:,} do not fit; give more, or 0 for no host memory"
            )
        return PoolSplit(full_blocks, window_blocks, self.full_block_bytes, self.window_block_bytes)

    def check(self, full_blocks: int, window_blocks: int, budget: int | None = None) -> None:
        """Raise PoolSizeError where these pools cannot hold one request of `max_model_len`."""
        full_needed = self.full_blocks_per_request + 1
        window_needed = self.window_blocks_per_request + 1
        if full_blocks >= full_needed and window_blocks >= window_needed:
            return
        of = f"{budget:,} bytes of KV cache give" if budget is not None else "the KV cache has"
        needed = full_needed * self.full_block_bytes + window_needed * self.window_block_bytes
        raise PoolSizeError(
            f"{of} {max(full_blocks, 0):,} full-attention blocks of {self.full_block_size} tokens "
            f"and {window_blocks:,} SWA blocks of {self.window_block_size}; one request of "
            f"{self.max_model_len:,} tokens needs {full_needed:,} and {window_needed:,} "
            f"({needed:,} bytes). Give the KV cache more memory (--gpu-memory-utilization, "
            "VLLM_CPU_KVCACHE_SPACE), or lower --max-model-len or --max-num-batched-tokens"
        )

    def _automatic_window_blocks(self, budget: int) -> int:
        in_flight = -(-self.in_flight_tokens // self.window_block_size)
        context = min(TYPICAL_CONTEXT, self.max_model_len)
        session_full = -(-context // self.full_block_size) * self.full_block_bytes
        tail = tail_blocks(self.window, self.window_block_size)
        session_blocks = tail + 1 + TAILS_PER_SESSION * tail
        session_window = session_blocks * self.window_block_bytes
        rest = max(0, budget - in_flight * self.window_block_bytes)
        for_sessions = rest // (session_full + session_window) * session_blocks
        # Many short requests at once need their windows, but not at the price of long ones.
        most = int(rest * RUNNING_SHARE) // self.window_block_bytes
        for_running = min(self.max_num_seqs * (tail + 1), most)
        return in_flight + max(for_sessions, for_running)
