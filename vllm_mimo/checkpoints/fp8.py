"""Block FP8 as MiMo checkpoints store it: e4m3 weights and one float32 scale per block.

Rows may be tiled: a fused `qkv_proj` restarts its scale grid at every chunk, so a tile's last block
can be shorter than the others. A plain matrix is one tile.
"""

from __future__ import annotations

import torch

FP8_MAX = 448.0
"""Largest finite e4m3 value."""


def scale_rows(rows: int, block: int, tiles: int = 1) -> int:
    """Rows of the scale tensor of a weight with `rows` rows in `tiles` equal tiles."""
    return tiles * -(-(rows // tiles) // block)


def row_scale_index(rows: int, block: int, tiles: int = 1) -> torch.Tensor:
    """Scale row of every weight row: (rows,) int64."""
    per_tile = rows // tiles
    row = torch.arange(rows)
    return (row // per_tile) * -(-per_tile // block) + (row % per_tile) // block


def expand_scales(
    scale: torch.Tensor, shape: tuple[int, int], block: tuple[int, int], tiles: int = 1
) -> torch.Tensor:
    """One scale per weight element: (rows, columns) float32."""
    rows, columns = shape
    by_row = scale.float()[row_scale_index(rows, block[0], tiles)]
    return by_row.repeat_interleave(block[1], dim=1)[:, :columns]


def dequantize(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int], tiles: int = 1
) -> torch.Tensor:
    """weight (rows, columns) e4m3 and its scales -> float32 of the same shape."""
    rows, columns = weight.shape
    return weight.float() * expand_scales(scale, (rows, columns), block, tiles)


def quantize(
    weight: torch.Tensor, block: tuple[int, int], tiles: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight (rows, columns) -> e4m3 weight of the same shape, float32 scales.

    Each block's largest magnitude becomes e4m3's largest value.
    """
    rows, columns = weight.shape
    index = row_scale_index(rows, block[0], tiles)
    column_blocks = -(-columns // block[1])
    padded = torch.nn.functional.pad(weight.float(), (0, column_blocks * block[1] - columns))
    peak = padded.abs().view(rows, column_blocks, block[1]).amax(-1)
    scale = torch.zeros(scale_rows(rows, block[0], tiles), column_blocks)
    scale.scatter_reduce_(0, index[:, None].expand(-1, column_blocks), peak, reduce="amax")
    scale = torch.where(scale > 0, scale / FP8_MAX, torch.ones_like(scale))
    full = expand_scales(scale, (rows, columns), block, tiles)
    return (weight.float() / full).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale
