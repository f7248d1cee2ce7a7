"""Copies KV blocks by index between any two buffers: host memory, pinned or not, and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vllm_mimo.native.library import available, has_cuda

_STAGED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class BlockView:
    """Blocks of one size in a buffer: block b begins at byte `offset + b * stride`."""

    storage: torch.Tensor
    """1-D uint8."""
    offset: int
    stride: int
    """Bytes from a block to the next."""
    block_bytes: int
    """Bytes of a block. More than `stride` where blocks overlap; such blocks are only read."""
    blocks: int

    def __post_init__(self) -> None:
        sizes = (self.offset, self.stride - 1, self.blocks, self.block_bytes - 1)
        if min(sizes) < 0 or self.end() > self.storage.numel():
            raise ValueError(
                f"{self.blocks} blocks of {self.block_bytes} bytes, {self.stride} apart from byte "
                f"{self.offset} on, do not fit a buffer of {self.storage.numel()} bytes"
            )

    def end(self) -> int:
        """The byte after the last block."""
        if not self.blocks:
            return self.offset
        return self.offset + (self.blocks - 1) * self.stride + self.block_bytes

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
    threads run meanwhile. On GPUs it is on the current stream of the target's device, or else of
    the source's, and both buffers must last until it is done; the pairs may go at once.

    Pairs are copied in any order, several at a time. So no target may be named twice or overlap a
    source or another target: which bytes it then holds is not defined. One buffer may be both ends.

    Raises ValueError, before anything is copied, where block sizes differ or there is no such
    block.
    """
    if dst.block_bytes != src.block_bytes:
        raise ValueError(
            f"blocks of {src.block_bytes} bytes do not fit blocks of {dst.block_bytes} bytes"
        )
    table = torch.as_tensor(pairs, dtype=torch.int64, device="cpu").reshape(-1, 2).contiguous()
    if not len(table):
        return
    on_device = dst.storage.is_cuda or src.storage.is_cuda
    if not (has_cuda() if on_device else available()):
        _check(table, dst, src)
        copy_blocks_by_torch(dst, src, table)
        return
    try:
        torch.ops.vllm_mimo.copy_blocks(
            # Cut behind the last block, so that the operation's check of bounds is that of blocks.
            dst.storage[: dst.end()],
            src.storage[: src.end()],
            table,
            dst.block_bytes,
            dst.offset,
            dst.stride,
            src.offset,
            src.stride,
            threads,
        )
    except RuntimeError:
        _check(table, dst, src)  # says it as a ValueError, if that was the reason
        raise


def copy_blocks_by_torch(dst: BlockView, src: BlockView, pairs: torch.Tensor) -> None:
    """`copy_blocks` with torch's operations; `pairs` (n, 2) int64 on the CPU, of valid blocks."""
    target, source = dst.rows(), src.rows()
    if target.is_cpu and source.is_cpu:
        # Ten times as fast as index_select and index_copy_ from 64 KiB on.
        for s, d in pairs.tolist():
            target[d].copy_(source[s])
        return
    # A few launches for many blocks, in parts because each is copied once more on the way.
    for part in pairs.split(max(1, _STAGED_BYTES // dst.block_bytes)):
        found = source.index_select(0, part[:, 0].to(source.device))
        target.index_copy_(0, part[:, 1].to(target.device), found.to(target.device))


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
