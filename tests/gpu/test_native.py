"""Block copies between GPU and host memory, in every direction, and pinned host memory.

With the library (`python3 setup.py build_ext --inplace` where nvcc is) and without it.
"""

from __future__ import annotations

import random
import shutil

import pytest
import torch

from vllm_mimo.native import blocks, library
from vllm_mimo.native.blocks import BlockView, copy_blocks
from vllm_mimo.native.host_memory import host_buffer, numa_node_of_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

KINDS = ("device", "pinned", "pageable")
DIRECTIONS = [(a, b) for a in KINDS for b in KINDS if "device" in (a, b)]
# Kernel with few words, with tail, unaligned, aligned, at its limit; copy engines.
SIZES = (48, 4096 + 24, 5001, 65536, (256 << 10) - 16, 256 << 10)


@pytest.fixture(params=["library", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library, or torch in its place."""
    if request.param == "torch":
        monkeypatch.setattr(blocks, "available", lambda: False)
        monkeypatch.setattr(blocks, "has_cuda", lambda: False)
    elif not library.has_cuda():
        assert shutil.which("nvcc") is None, library.describe()
        pytest.skip("no nvcc to build the library with")
    return request.param


def buffer(kind: str, size: int) -> torch.Tensor:
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    if kind == "device":
        return data.cuda()
    made = host_buffer((size,), pinned=kind == "pinned")
    return made.copy_(data)


def view(kind: str, size: int, count: int, gap: int) -> BlockView:
    stride = size + gap
    return BlockView(buffer(kind, 32 + count * stride), 32, stride, size, count)


def expected(dst: BlockView, src: BlockView, pairs: list[tuple[int, int]]) -> torch.Tensor:
    result, source = dst.storage.cpu().clone(), src.storage.cpu()
    for s, d in pairs:
        a, b = src.offset + s * src.stride, dst.offset + d * dst.stride
        result[b : b + dst.block_bytes] = source[a : a + src.block_bytes]
    return result


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
def test_every_direction(way: str, source: str, target: str, size: int) -> None:
    chosen = random.Random(size)
    for count, gap in ((1, 0), (7, 48), (300 if size < 1 << 17 else 20, 0)):
        src, dst = view(source, size, count, gap), view(target, size, count + 2, 16)
        places = chosen.sample(range(count + 2), count)
        pairs = list(zip(chosen.sample(range(count), count), places, strict=True))
        wanted = expected(dst, src, pairs)
        copy_blocks(dst, src, pairs)
        torch.cuda.synchronize()
        assert torch.equal(dst.storage.cpu(), wanted), (count, gap)


@pytest.mark.parametrize("size", [4096, 512 << 10])
def test_runs_of_neighbours(way: str, size: int) -> None:
    src, dst = view("pinned", size, 24, 0), view("device", size, 24, 0)
    pairs = [*((i, i + 4) for i in range(10)), (20, 0), *((i, i + 3) for i in range(12, 18))]
    wanted = expected(dst, src, pairs)
    copy_blocks(dst, src, pairs)
    torch.cuda.synchronize()
    assert torch.equal(dst.storage.cpu(), wanted)


@pytest.mark.parametrize("size", [32 << 10, 512 << 10])
def test_copies_follow_what_their_stream_does(way: str, size: int) -> None:
    src, dst = view("device", size, 200, 0), view("pinned", size, 200, 0)
    pairs = torch.tensor([[i, 199 - i] for i in range(200)])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # without order the copy would read what was there before
        src.storage.fill_(7)
        copy_blocks(dst, src, pairs)
        pairs.zero_()  # the table may go at once
        ended = torch.cuda.Event()
        ended.record(stream)
    ended.synchronize()
    assert bool((dst.rows() == 7).all())


def test_a_copy_does_not_wait_for_the_device() -> None:
    if not library.has_cuda():
        pytest.skip("torch's way may wait")
    src, dst = view("pinned", 64 << 10, 256, 0), view("device", 64 << 10, 256, 0)
    pairs = torch.tensor([[i, i] for i in range(256)])
    copy_blocks(dst, src, pairs)
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    torch.cuda._sleep(500_000_000)
    copy_blocks(dst, src, pairs)
    event.record()
    assert not event.query()
    torch.cuda.synchronize()


def test_bounds_are_checked_before_anything_is_copied(way: str) -> None:
    src, dst = view("pinned", 64, 4, 0), view("device", 64, 4, 0)
    before = dst.storage.clone()
    with pytest.raises(ValueError, match="pair 1: source block 0 of 4, target block 4 of 4"):
        copy_blocks(dst, src, [(0, 0), (0, 4)])
    torch.cuda.synchronize()
    assert torch.equal(dst.storage, before)


def test_a_second_device(way: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    src, dst = view("pinned", 4096, 8, 0), view("pinned", 4096, 8, 0)
    second = BlockView(torch.zeros(8 * 4096, dtype=torch.uint8, device="cuda:1"), 0, 4096, 4096, 8)
    first = BlockView(torch.zeros(8 * 4096, dtype=torch.uint8, device="cuda:0"), 0, 4096, 4096, 8)
    pairs = [(i, i) for i in range(8)]
    for a, b in ((second, src), (first, second), (dst, first)):
        copy_blocks(a, b, pairs)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
    assert torch.equal(dst.rows(), src.rows())


def test_host_memory_is_pinned_and_freed() -> None:
    for _ in range(3):  # the same addresses again would fail if they were still registered
        made = host_buffer((64 << 20,), pinned=True)
        assert made.is_pinned()
        made.cuda(non_blocking=True)
        torch.cuda.synchronize()
        del made


def test_the_node_of_a_device_is_a_node_or_unknown() -> None:
    node = numa_node_of_device(0)
    assert node is None or node >= 0
