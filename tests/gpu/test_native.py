"""Block copies by index on the device, from and to pinned and pageable host memory."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from vllm_mimo.native import library
from vllm_mimo.native.blocks import BlockView, copy_blocks
from vllm_mimo.native.host_memory import host_buffer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PLACES = ("device", "pinned", "pageable")


def buffer(place: str, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    if place == "device":
        return values.cuda()
    made = host_buffer((size,), pinned=place == "pinned")
    return made.copy_(values)


def test_the_library_has_its_cuda_operations() -> None:
    assert library.has_cuda(), library.describe()


@pytest.mark.parametrize("block_bytes", [48, 4096, 24_576, 1 << 20])
@pytest.mark.parametrize(
    ("source", "target"), [p for p in itertools.product(PLACES, PLACES) if "device" in p]
)
def test_copies_what_the_host_copies(source: str, target: str, block_bytes: int) -> None:
    blocks, stride = 300 if block_bytes < 1 << 20 else 20, block_bytes + 32
    src, dst = (
        BlockView(buffer(place, 16 + blocks * stride, seed), 16, stride, block_bytes, blocks)
        for seed, place in enumerate((source, target))
    )
    order = list(range(blocks))
    random.Random(block_bytes).shuffle(order)
    pairs = torch.tensor(list(zip(order, reversed(range(blocks)), strict=True))[: blocks * 3 // 4])
    wanted = dst.storage.cpu().clone()
    host = BlockView(src.storage.cpu(), 16, stride, block_bytes, blocks)
    copy_blocks(BlockView(wanted, 16, stride, block_bytes, blocks), host, pairs)
    copy_blocks(dst, src, pairs)
    torch.cuda.synchronize()
    assert torch.equal(dst.storage.cpu(), wanted)
