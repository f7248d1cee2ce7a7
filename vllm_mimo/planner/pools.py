"""The two pools of this project: their split, and how many requests they hold.

The arithmetic of the split is `vllm_mimo.kv.sizing`'s. What is added here is pipeline stages, and
what requests of given lengths take: a running request holds its full blocks and the SWA blocks of
its window; the batch in flight has its SWA slots once, whoever's tokens it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.kv.sizing import KVShape, PoolDemand, PoolSizeError, PoolSplit, running_blocks
from vllm_mimo.planner.inputs import MixPart, PlanError
from vllm_mimo.planner.placement import stage_layers
from vllm_mimo.planner.serving import Serving

Binding = Literal["full", "SWA"]


@dataclass(frozen=True, slots=True)
class Charge:
    """What one running request takes, on one rank (and on that rank of every pipeline stage)."""

    full_blocks: float
    window_blocks: float
    full_bytes: float
    window_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.full_bytes + self.window_bytes


@dataclass(frozen=True, slots=True)
class TwoPools:
    """Both pools of one attention replica. Make it with `plan_pools`."""

    serving: Serving
    demands: tuple[PoolDemand, ...]
    """One for each pipeline stage."""
    full_blocks: int
    """Blocks of the full pool, the null block included; all stages have the same ids."""
    window_blocks: int

    @property
    def full_block_bytes(self) -> int:
        """Bytes of a block on all stages together."""
        return sum(demand.full_block_bytes for demand in self.demands)

    @property
    def window_block_bytes(self) -> int:
        return sum(demand.window_block_bytes for demand in self.demands)

    @property
    def in_flight_blocks(self) -> int:
        """SWA blocks for the tokens of the batches in flight."""
        return -(-self.serving.in_flight_tokens // self.serving.block_size)

    @property
    def full_tokens(self) -> int:
        """Tokens that the full pool holds."""
        return (self.full_blocks - 1) * self.serving.block_size

    @property
    def window_fraction(self) -> float:
        """The SWA pool's share of the bytes."""
        window = self.window_blocks * self.window_block_bytes
        return window / (window + self.full_blocks * self.full_block_bytes)

    def charge(self, tokens: int) -> Charge:
        """What a running request of `tokens` tokens takes."""
        size = self.serving.block_size
        full = -(-tokens // size)
        window = min(
            running_blocks(
                self.demands[0].window,
                size,
                self.serving.decoding_tokens,
                self.serving.extra_window_tokens,
            ),
            full + 1,
        )
        return Charge(full, window, full * self.full_block_bytes, window * self.window_block_bytes)

    def mean_charge(self, mix: Sequence[MixPart]) -> Charge:
        """What a request of `mix` takes on average."""
        charges = [(part.share, self.charge(part.tokens)) for part in mix]
        full = sum(share * charge.full_blocks for share, charge in charges)
        window = sum(share * charge.window_blocks for share, charge in charges)
        return Charge(full, window, full * self.full_block_bytes, window * self.window_block_bytes)

    def concurrent(self, mix: Sequence[MixPart]) -> tuple[int, Binding]:
        """Most requests of `mix` that run at once, and the pool that is full then."""
        mean = self.mean_charge(mix)
        by_full = (self.full_blocks - 1) / mean.full_blocks
        by_window = (self.window_blocks - 1 - self.in_flight_blocks) / mean.window_blocks
        return max(0, int(min(by_full, by_window))), "SWA" if by_window < by_full else "full"

    def balanced_fraction(self, mix: Sequence[MixPart]) -> float:
        """The SWA pool's share with which `mix` fills both pools at once, keeping no tails."""
        mean = self.mean_charge(mix)
        window, full = self.window_block_bytes, self.full_block_bytes
        total = self.window_blocks * window + self.full_blocks * full
        fixed = (self.in_flight_blocks + 1) * window
        requests = (total - fixed - full) / mean.total_bytes
        return (fixed + requests * mean.window_bytes) / total


def stage_shapes(geometry: TextGeometry, tp: int, serving: Serving) -> tuple[KVShape, ...]:
    """KV bytes per token of one rank in each pipeline stage; MTP layers are in the last.

    Raises PlanError for a stage that lacks a kind of layer.
    """
    whole = KVShape.from_geometry(geometry, tp, serving.dtype_bytes, serving.mtp)
    windows = sum(geometry.layer_is_swa)
    per_full = whole.full_bytes // (geometry.num_layers - windows)
    per_window = whole.window_bytes // (windows + serving.mtp)
    shapes = []
    for stage, layers in enumerate(stage_layers(geometry.num_layers, serving.pp)):
        swa = sum(geometry.layer_is_swa[layer] for layer in layers)
        full = len(layers) - swa
        swa += serving.mtp if stage == serving.pp - 1 else 0
        if not (full and swa):
            kind = "sliding-window" if full else "full-attention"
            raise PlanError(
                f"--pp {serving.pp} leaves stage {stage} without a {kind} layer; "
                "both pools need one in every stage"
            )
        shapes.append(KVShape(full * per_full, swa * per_window, whole.window, whole.window_layers))
    return tuple(shapes)


def plan_pools(
    geometry: TextGeometry, tp: int, serving: Serving, budgets: Sequence[int]
) -> TwoPools:
    """Split `budgets`, bytes of KV on a rank of each stage.

    Raises PoolSizeError where one request of `max_model_len` tokens does not fit.
    """
    demands, splits = [], list[PoolSplit]()
    for shape, budget in zip(stage_shapes(geometry, tp, serving), budgets, strict=True):
        demand = PoolDemand(
            full_block_size=serving.block_size,
            window_block_size=serving.block_size,
            full_block_bytes=shape.full_bytes * serving.block_size,
            window_block_bytes=shape.window_bytes * serving.block_size,
            window=shape.window,
            max_model_len=serving.max_model_len,
            in_flight_tokens=serving.in_flight_tokens,
            max_num_seqs=serving.max_num_seqs,
            extra_window_tokens=serving.extra_window_tokens,
        )
        demands.append(demand)
        splits.append(demand.split(budget, serving.window_fraction))
    return TwoPools(
        serving,
        tuple(demands),
        min(split.full_blocks for split in splits),
        min(split.window_blocks for split in splits),
    )


__all__ = ["Charge", "PoolSizeError", "TwoPools", "plan_pools", "stage_shapes"]
