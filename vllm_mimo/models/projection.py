"""The QKV projection of one tensor-parallel rank, unquantised or in block FP8."""

from __future__ import annotations

import torch
from torch import nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.linear import (
    QKVParallelLinear,
    ReplicatedLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import QuantizationConfig

from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.geometry import AttentionGeometry
from vllm_mimo.checkpoints.weights import CheckpointError, scale_tiles


def block_size(quant_config: QuantizationConfig | None) -> int | None:
    """Rows of a scale block when the checkpoint itself is in block FP8, else None."""
    if not getattr(quant_config, "is_checkpoint_fp8_serialized", False):
        return None
    block = getattr(quant_config, "weight_block_size", None)
    return int(block[0]) if block else None


class BlockFP8QKV(ReplicatedLinear):
    """Q, K and V rows of this rank, kept in whole checkpoint blocks (see `checkpoints.qkv`).

    A replicated layer to vLLM: which rows a rank holds is decided here, so that scales stay exact.
    """

    def __init__(
        self,
        hidden_size: int,
        geometry: AttentionGeometry,
        chunks: int | None,
        quant_config: QuantizationConfig,
        prefix: str,
    ) -> None:
        block = block_size(quant_config)
        assert block is not None
        self.plan = qkv.plan_rank(
            geometry,
            chunks,
            block,
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
        )
        self.geometry, self.chunks = geometry, chunks
        super().__init__(
            hidden_size, self.plan.rows, bias=False, quant_config=quant_config, prefix=prefix
        )
        self._tiles: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def split(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens, plan.rows) -> Q, K, V of this rank's heads."""
        return (
            qkv.take(output, self.plan.q),
            qkv.take(output, self.plan.k),
            qkv.take(output, self.plan.v),
        )

    def load(self, part: str, weight: torch.Tensor, scale: torch.Tensor) -> bool:
        """Take a checkpoint's weight (rows, hidden) e4m3 and its scales.

        Args:
            part: `qkv_proj`, or `q_proj`, `k_proj`, `v_proj` of a split checkpoint.

        Returns:
            Whether the projection is now complete.
        """
        if part == "qkv_proj":
            assert self.chunks is not None
            tiles = list(weight.chunk(self.chunks))
            if scale_tiles(weight, scale, self.plan.block, self.chunks) != self.chunks:
                raise CheckpointError(
                    f"the scale grid of a fused qkv_proj runs across its {self.chunks} chunks of "
                    f"{tiles[0].shape[0]} rows: re-quantise it chunk by chunk"
                )
            scales = list(scale.chunk(self.chunks))
        else:
            self._tiles[part] = (weight, scale)
            if len(self._tiles) < 3:
                return False
            pairs = [self._tiles.pop(f"{x}_proj") for x in "qkv"]
            tiles, scales = [w for w, _ in pairs], [s for _, s in pairs]
        rank_weight, rank_scale = qkv.gather_blocks(self.plan, tiles, scales)
        with torch.no_grad():
            self.weight.data.copy_(rank_weight)
            self.weight_scale_inv.data.copy_(rank_scale)
        return True


class PlainQKV(QKVParallelLinear):
    """vLLM's QKV projection, with the split that goes with it."""

    def __init__(
        self,
        hidden_size: int,
        geometry: AttentionGeometry,
        bias: bool,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__(
            hidden_size,
            geometry.head_dim,
            geometry.num_heads,
            geometry.num_kv_heads,
            bias=bias,
            quant_config=quant_config,
            prefix=prefix,
            v_head_size=geometry.v_head_dim,
        )
        self.sizes = [
            self.num_heads * geometry.head_dim,
            self.num_kv_heads * geometry.head_dim,
            self.num_kv_heads * geometry.v_head_dim,
        ]

    def split(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens, rows) -> Q, K, V of this rank's heads."""
        q, k, v = output.split(self.sizes, dim=-1)
        return q, k, v


def _is_left_out(quant_config: QuantizationConfig | None, prefix: str) -> bool:
    """Whether the config stores this projection unquantised among quantised ones."""
    assert quant_config is not None
    probe = ReplicatedLinear(1, 1, bias=False)
    return isinstance(quant_config.get_quant_method(probe, prefix), UnquantizedLinearMethod)


def make_qkv(
    hidden_size: int,
    geometry: AttentionGeometry,
    chunks: int | None,
    bias: bool,
    quant_config: QuantizationConfig | None,
    prefix: str,
) -> nn.Module:
    """The projection that fits the checkpoint. `chunks` is None for split checkpoints."""
    if block_size(quant_config) is None or _is_left_out(quant_config, prefix):
        return PlainQKV(hidden_size, geometry, bias, quant_config, prefix)
    if bias:
        raise CheckpointError("block-FP8 qkv projections with a bias are not supported")
    assert quant_config is not None
    return BlockFP8QKV(hidden_size, geometry, chunks, quant_config, prefix)
