"""Copies KV blocks by index between any two buffers: host memory, pinned or not, and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vllm_mimo.native.library import available, has_cuda


@dataclass(frozen=True, slots=True)
class BlockView:
    """Blocks of one size in a buffer: block b begins at byte `offset + b * stride`."""

    storage: torch.Tensor
    """1-D uint8."""
    offset: int
    stride: int
    """Bytes from a block to the next."""
    block_bytes: int
    """Bytes of a block, at most `stride`."""
    blocks: int

    def rows(self) -> torch.Tensor:
        """(blocks, block_bytes) uint8, sharing the buffer's memory."""
        shape = (self.blocks, self.block_bytes)
        return torch.as_strided(self.storage, shape, (self.stride, 1), self.offset)


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage as 1-D uint8, sharing its memory."""
    made = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return made.set_(tensor.untyped_storage())


def copy_blocks(
    dst: BlockView,
    src: BlockView,
    pairs: Sequence[tuple[int, int]] | torch.Tensor,
    threads: int = 0,
) -> None:
    """Copy `src`'s block to `dst`'s for each (source block, target block).

    On CPUs the copy is done on return, by `threads` threads (0: as many as pay), and other Python
    threads run meanwhile; on GPUs it is on the current stream. Targets must not be named twice, and
    none may overlap a source.

    Raises ValueError, before anything is copied, where block sizes differ or a block is not there.
    """
    if dst.block_bytes != src.block_bytes:
        raise ValueError(
            f"blocks of {src.block_bytes} bytes do not fit blocks of {dst.block_bytes} bytes"
        )
    table = torch.as_tensor(pairs, dtype=torch.int64).reshape(-1, 2).contiguous()
    if not len(table):
        return
    _check(table, dst, src)
    on_device = dst.storage.is_cuda or src.storage.is_cuda
    if available() and (has_cuda() or not on_device):
        torch.ops.vllm_mimo.copy_blocks(
            dst.storage,
            src.storage,
            table,
            dst.block_bytes,
            dst.offset,
            dst.stride,
            src.offset,
            src.stride,
            threads,
        )
        return
    copy_blocks_by_torch(dst, src, table)


def copy_blocks_by_torch(dst: BlockView, src: BlockView, pairs: torch.Tensor) -> None:
    """`copy_blocks` with torch's operations; `pairs` (n, 2) int64 on the CPU, of valid blocks."""
    found = src.rows().index_select(0, pairs[:, 0].to(src.storage.device))
    found = found.to(dst.storage.device)
    dst.rows().index_copy_(0, pairs[:, 1].to(dst.storage.device), found)


def _check(pairs: torch.Tensor, dst: BlockView, src: BlockView) -> None:
    limits = torch.tensor([src.blocks, dst.blocks])
    low, high = torch.aminmax(pairs, dim=0)
    if bool((low >= 0).all()) and bool((high < limits).all()):
        return
    wrong = ((pairs < 0) | (pairs >= limits)).any(dim=1).nonzero()[0].item()
    source, target = pairs[int(wrong)].tolist()
    raise ValueError(
        f"pair {wrong}: source block {source} of {src.blocks}, target block {target} of "
        f"{dst.blocks}: there is no such block"
    )
