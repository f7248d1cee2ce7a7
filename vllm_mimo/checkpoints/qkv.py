"""Where Q, K and V rows stand in a checkpoint, and which of them a tensor-parallel rank needs.

A fused `qkv_proj` is a row of chunks [Q | K | V], one per `num_key_value_heads` of the config, for
SWA layers too. Split checkpoints hold three matrices. In block FP8 both are grids of scale blocks
that restart at every *tile* (a chunk, or one of the three matrices). Rank boundaries and K/V
boundaries need not fall on blocks, so re-cutting the rows would mix rows of different scales in one
block. Instead a rank keeps whole checkpoint blocks: every block that holds one of its rows, at that
row's place within the block. Scales then stay the checkpoint's own, at any rank count, and the rows
of foreign heads inside a kept block are computed and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vllm_mimo.checkpoints.geometry import AttentionGeometry


class Run(NamedTuple):
    """Consecutive rows of one tile."""

    tile: int
    start: int
    length: int


class Slice(NamedTuple):
    """Consecutive columns of the rank's projection output."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class RankHeads:
    """Heads that a rank computes; KV heads are replicated when there are more ranks than heads."""

    q: range
    kv: range


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Blocks that a rank keeps of a block-FP8 projection, and where its heads come out."""

    blocks: tuple[tuple[int, int], ...]
    """(tile, block within the tile), in the order in which the rank stores them."""
    block: int
    q: tuple[Slice, ...]
    k: tuple[Slice, ...]
    v: tuple[Slice, ...]

    @property
    def rows(self) -> int:
        """Rows of the rank's weight, a whole number of blocks."""
        return len(self.blocks) * self.block


def rank_heads(geo: AttentionGeometry, rank: int, ranks: int) -> RankHeads:
    """Heads of `rank` out of `ranks`. Raises ValueError when they do not divide evenly."""
    if geo.num_heads % ranks:
        raise ValueError(
            f"{geo.num_heads} attention heads cannot be split over {ranks} tensor-parallel ranks"
        )
    q = geo.num_heads // ranks
    if geo.num_kv_heads % ranks == 0:
        kv = geo.num_kv_heads // ranks
        kv_heads = range(rank * kv, (rank + 1) * kv)
    elif ranks % geo.num_kv_heads == 0:
        first = rank // (ranks // geo.num_kv_heads)
        kv_heads = range(first, first + 1)
    else:
        raise ValueError(
            f"{geo.num_kv_heads} KV heads cannot be split or replicated over {ranks} "
            "tensor-parallel ranks"
        )
    return RankHeads(range(rank * q, (rank + 1) * q), kv_heads)


def check_chunks(geo: AttentionGeometry, chunks: int) -> None:
    """Raise ValueError when `chunks` do not divide both kinds of heads."""
    if chunks < 1 or geo.num_heads % chunks or geo.num_kv_heads % chunks:
        raise ValueError(
            f"a fused qkv_proj in {chunks} chunks does not divide "
            f"{geo.num_heads} query and {geo.num_kv_heads} KV heads"
        )


def chunk_rows(geo: AttentionGeometry, chunks: int) -> int:
    """Rows of one chunk of a fused `qkv_proj`."""
    check_chunks(geo, chunks)
    return geo.qkv_rows // chunks


def fuse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunks: int) -> torch.Tensor:
    """Three matrices (rows, columns) -> one in chunks of [Q | K | V]."""
    parts = zip(q.chunk(chunks), k.chunk(chunks), v.chunk(chunks), strict=True)
    return torch.cat([torch.cat(part) for part in parts])


def split(
    fused: torch.Tensor, geo: AttentionGeometry, chunks: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of `fuse`. Raises ValueError when the rows are not those of `geo`."""
    rows = chunk_rows(geo, chunks)
    if fused.shape[0] != rows * chunks:
        raise ValueError(f"fused qkv_proj has {fused.shape[0]} rows, expected {rows * chunks}")
    sizes = [n // chunks for n in (geo.q_rows, geo.k_rows, geo.v_rows)]
    parts = [chunk.split(sizes) for chunk in fused.chunk(chunks)]
    q, k, v = (torch.cat(column) for column in zip(*parts, strict=True))
    return q, k, v


def plan_rank(
    geo: AttentionGeometry, chunks: int | None, block: int, rank: int, ranks: int
) -> RankPlan:
    """The blocks that `rank` keeps. `chunks` is None for split checkpoints."""
    heads = rank_heads(geo, rank, ranks)
    runs = {
        "q": list(_runs(geo, chunks, "q", heads.q)),
        "k": list(_runs(geo, chunks, "k", heads.kv)),
        "v": list(_runs(geo, chunks, "v", heads.kv)),
    }
    # K and V of one chunk are neighbours and may share a block: place them together.
    order = [("q", run) for run in runs["q"]]
    for k_run, v_run in zip(runs["k"], runs["v"], strict=True):
        order += [("k", k_run), ("v", v_run)]
    blocks: list[tuple[int, int]] = []
    where: dict[str, list[Slice]] = {"q": [], "k": [], "v": []}
    for kind, run in order:
        first = (run.tile, run.start // block)
        if not blocks or blocks[-1] != first:
            blocks.append(first)
        base = len(blocks) - 1
        last = (run.start + run.length - 1) // block
        blocks += [(run.tile, b) for b in range(first[1] + 1, last + 1)]
        _append(where[kind], Slice(base * block + run.start % block, run.length))
    return RankPlan(tuple(blocks), block, *(tuple(where[kind]) for kind in "qkv"))


def _append(slices: list[Slice], new: Slice) -> None:
    if slices and slices[-1].start + slices[-1].length == new.start:
        new = Slice(slices[-1].start, slices.pop().length + new.length)
    slices.append(new)


def _runs(geo: AttentionGeometry, chunks: int | None, kind: str, heads: range) -> Iterator[Run]:
    """Rows of `heads`, one run per chunk, in head order."""
    total = geo.num_heads if kind == "q" else geo.num_kv_heads
    width = geo.v_head_dim if kind == "v" else geo.head_dim
    if chunks is None:
        yield Run("qkv".index(kind), heads.start * width, len(heads) * width)
        return
    check_chunks(geo, chunks)
    per_chunk = total // chunks
    offset = {"q": 0, "k": geo.q_rows, "v": geo.q_rows + geo.k_rows}[kind] // chunks
    for chunk in range(heads.start // per_chunk, (heads.stop - 1) // per_chunk + 1):
        low = max(heads.start, chunk * per_chunk) - chunk * per_chunk
        high = min(heads.stop, (chunk + 1) * per_chunk) - chunk * per_chunk
        yield Run(chunk, offset + low * width, (high - low) * width)


def gather_blocks(
    plan: RankPlan, tiles: list[torch.Tensor], scales: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's weight (plan.rows, columns) and scales (blocks, column blocks).

    Args:
        plan: from `plan_rank`.
        tiles: one e4m3 matrix per tile.
        scales: one scale matrix per tile, a row per block.

    A tile's short last block is filled up with zero rows; its scale stays.
    """
    weight = tiles[0].new_zeros((plan.rows, tiles[0].shape[1]))
    scale = scales[0].new_empty((len(plan.blocks), scales[0].shape[1]))
    for i, (tile, block) in enumerate(plan.blocks):
        rows = tiles[tile][block * plan.block : (block + 1) * plan.block]
        # Copied as bytes: not every build can copy_ float8 across layouts.
        target = weight[i * plan.block : i * plan.block + rows.shape[0]]
        target.view(torch.uint8).copy_(rows.view(torch.uint8))
        scale[i] = scales[tile][block]
    return weight, scale


def take(output: torch.Tensor, slices: tuple[Slice, ...]) -> torch.Tensor:
    """Columns of `output` (tokens, plan.rows) at `slices`, joined, a view if there is one."""
    parts = [output.narrow(-1, s.start, s.length) for s in slices]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
