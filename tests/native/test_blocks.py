"""Block copies against plain torch, in the compiled library and in torch's stead."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paths import ROOT
from vllm_mimo.native import library
from vllm_mimo.native.blocks import BlockView, copy_blocks, copy_blocks_by_torch, storage_bytes

native = pytest.mark.skipif(
    shutil.which("c++") is None,
    reason="no compiler: the library cannot be built here",
)


@native
def test_the_library_is_built_and_loads() -> None:
    assert library.why_not() is None
    with_cuda = shutil.which("nvcc") is not None and torch.version.cuda is not None
    assert library.has_cuda() == with_cuda


@native
def test_cuda_operations_are_registered_where_nvcc_is() -> None:
    if not library.has_cuda():
        pytest.skip("no nvcc, or a torch without CUDA")
    assert torch._C._dispatch_has_kernel_for_dispatch_key("vllm_mimo::copy_blocks", "CUDA")


@st.composite
def views(draw: st.DrawFn, block_bytes: int) -> BlockView:
    blocks = draw(st.integers(1, 40))
    stride = block_bytes + draw(st.sampled_from([0, 0, 1, 16, 48]))
    offset = draw(st.sampled_from([0, 1, 16, 64]))
    size = offset + blocks * stride + draw(st.integers(0, 9))
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    return BlockView(data, offset, stride, block_bytes, blocks)


@st.composite
def copies(draw: st.DrawFn) -> tuple[BlockView, BlockView, list[tuple[int, int]], int]:
    block_bytes = draw(st.sampled_from([1, 15, 16, 64, 100, 4096, 70_001]))
    dst, src = draw(views(block_bytes)), draw(views(block_bytes))
    targets = draw(st.lists(st.integers(0, dst.blocks - 1), unique=True))
    if draw(st.booleans()):
        first = draw(st.integers(0, src.blocks - 1))
        targets.sort()
        pairs = [((first + i) % src.blocks, t) for i, t in enumerate(targets)]
    else:
        pairs = [(draw(st.integers(0, src.blocks - 1)), t) for t in targets]
    return dst, src, pairs, draw(st.integers(0, 4))


def expected(dst: BlockView, src: BlockView, pairs: list[tuple[int, int]]) -> torch.Tensor:
    result = dst.storage.clone()
    for s, d in pairs:
        a, b = src.offset + s * src.stride, dst.offset + d * dst.stride
        result[b : b + dst.block_bytes] = src.storage[a : a + src.block_bytes]
    return result


@settings(max_examples=150, deadline=None, derandomize=True)
@given(copies())
def test_copies_what_torch_copies(case) -> None:  # type: ignore[no-untyped-def]
    dst, src, pairs, threads = case
    wanted = expected(dst, src, pairs)
    before = dst.storage.clone()
    copy_blocks(dst, src, pairs, threads)
    assert torch.equal(dst.storage, wanted)
    dst.storage.copy_(before)
    copy_blocks_by_torch(dst, src, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2))
    assert torch.equal(dst.storage, wanted)
    if library.available() and pairs:
        dst.storage.copy_(before)
        torch.ops.vllm_mimo.copy_blocks_by_kernel_body(
            dst.storage, src.storage, torch.tensor(pairs), dst.block_bytes,
            dst.offset, dst.stride, src.offset, src.stride, 1 + 5 * threads,
        )  # fmt: skip
        assert torch.equal(dst.storage, wanted)


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1), (4, 0), (0, 5)])
def test_a_block_that_does_not_exist_is_named_and_nothing_is_copied(pair: tuple[int, int]) -> None:
    src = BlockView(torch.ones(64, dtype=torch.uint8), 0, 16, 16, 4)
    dst = BlockView(torch.zeros(80, dtype=torch.uint8), 0, 16, 16, 5)
    with pytest.raises(ValueError, match=rf"pair 1: source block {pair[0]} of 4, target"):
        copy_blocks(dst, src, [(0, 0), pair])
    assert not dst.storage.any()


@native
def test_the_library_checks_bounds_itself() -> None:
    buffer = torch.zeros(64, dtype=torch.uint8)
    pairs = torch.tensor([[0, 0], [0, 4]])
    with pytest.raises(RuntimeError, match=r"pair 1 \(source block 0, target block 4\) is outside"):
        torch.ops.vllm_mimo.copy_blocks(buffer, buffer, pairs, 16, 0, 16, 0, 16, 1)


@native
@pytest.mark.parametrize("pair", [(2**62, 0), (0, 2**62), (2**63 - 1, 0), (-(2**63), 0)])
def test_a_block_number_that_exceeds_64_bits_of_bytes_is_refused(pair: tuple[int, int]) -> None:
    buffer = torch.zeros(64, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="pair 0 "):
        torch.ops.vllm_mimo.copy_blocks(
            buffer, buffer.clone(), torch.tensor([pair]), 16, 0, 16, 0, 16, 1
        )


def test_bounds_are_those_of_the_blocks_not_of_the_buffer() -> None:
    buffer = torch.ones(256, dtype=torch.uint8)
    dst = BlockView(torch.zeros(256, dtype=torch.uint8), 0, 64, 16, 2)
    src = BlockView(buffer, 16, 64, 16, 3)
    copy_blocks(dst, src, [(2, 1)])
    assert dst.storage.nonzero().flatten().tolist() == list(range(64, 80))
    for pair in ((3, 0), (0, 2)):  # both would lie within the buffers
        with pytest.raises(ValueError, match=r"pair 0: .* there is no such block"):
            copy_blocks(dst, src, [pair])


@pytest.mark.parametrize("layout", [(0, 16, 16, 5), (1, 16, 16, 4), (-1, 16, 16, 1), (0, 0, 1, 2)])
def test_a_view_beyond_its_buffer_is_refused(layout: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit a buffer of 64 bytes"):
        BlockView(torch.zeros(64, dtype=torch.uint8), *layout)


@pytest.mark.parametrize("shift", [0, 1, 31])
@pytest.mark.parametrize("threads", [1, 3])
def test_copies_larger_than_the_caches(shift: int, threads: int) -> None:
    # These go past the caches, by another loop than small ones.
    size, blocks = (1 << 20) + 96 + shift, 20
    src = BlockView(torch.randint(0, 256, (blocks * size + 64,)).to(torch.uint8), 5, size, size, 20)
    dst = BlockView(torch.zeros(blocks * size + 64, dtype=torch.uint8), shift, size, size, blocks)
    pairs = [(s, (7 * s + 3) % blocks) for s in range(blocks)]
    wanted = expected(dst, src, pairs)
    copy_blocks(dst, src, pairs, threads)
    assert torch.equal(dst.storage, wanted)


def test_blocks_move_within_one_buffer() -> None:
    view = BlockView(torch.arange(64, dtype=torch.uint8), 0, 16, 16, 4)
    copy_blocks(view, view, [(0, 2), (1, 3)])
    assert view.storage.tolist() == [*range(32), *range(32)]


def test_sizes_must_agree() -> None:
    buffer = torch.zeros(64, dtype=torch.uint8)
    with pytest.raises(ValueError, match="blocks of 8 bytes do not fit blocks of 16 bytes"):
        copy_blocks(BlockView(buffer, 0, 16, 16, 4), BlockView(buffer, 0, 8, 8, 8), [(0, 1)])


def test_storage_bytes_shares_memory() -> None:
    tensor = torch.zeros(3, 5)[1:]
    raw = storage_bytes(tensor)
    assert raw.numel() == 60
    raw.fill_(255)
    assert tensor.isnan().all()


@native
def test_other_threads_run_during_a_copy() -> None:
    size = 1 << 20
    blocks = 384
    src = BlockView(torch.ones(blocks * size, dtype=torch.uint8), 0, size, size, blocks)
    dst = BlockView(torch.zeros(blocks * size, dtype=torch.uint8), 0, size, size, blocks)
    order = list(range(blocks))
    random.Random(0).shuffle(order)
    pairs = torch.tensor([[s, d] for d, s in enumerate(order)])
    ended = threading.Event()
    started = threading.Event()

    def copy() -> None:
        started.set()
        for _ in range(12):
            copy_blocks(dst, src, pairs, 1)
        ended.set()

    thread = threading.Thread(target=copy)
    thread.start()
    started.wait()
    ticks = 0
    while not ended.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 20  # a copy that held the lock would leave twelve moments


def test_torch_does_the_work_without_the_library() -> None:
    code = (
        "import torch\n"
        "from vllm_mimo.native import library\n"
        "from vllm_mimo.native.blocks import BlockView, copy_blocks\n"
        "assert library.describe() == 'not used: VLLM_MIMO_NATIVE is 0'\n"
        "assert library.why_not() == 'VLLM_MIMO_NATIVE is 0'\n"
        "a = BlockView(torch.arange(64, dtype=torch.uint8), 0, 16, 16, 4)\n"
        "b = BlockView(torch.zeros(64, dtype=torch.uint8), 0, 16, 16, 4)\n"
        "copy_blocks(b, a, [(3, 0)])\n"
        "assert b.storage[:16].tolist() == list(range(48, 64)) and not b.storage[16:].any()\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        env={**os.environ, library.ENV_VAR: "0"},
    )


def test_a_library_that_is_missing_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv(library.ENV_VAR, raising=False)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_C.so")
    monkeypatch.setattr(library.logger, "propagate", True)
    for text in ("was not built", "invalid ELF header|file too short"):
        library.why_not.cache_clear()
        caplog.clear()
        try:
            assert not library.available() and not library.available()
        finally:
            library.why_not.cache_clear()
        (message,) = (record.getMessage() for record in caplog.records)
        assert re.search(text, message)
        library.LIBRARY.write_bytes(b"not a library" * 9)
