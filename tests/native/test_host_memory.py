"""Host buffers, as far as they can be seen without a GPU."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from vllm_mimo.native import host_memory
from vllm_mimo.native.host_memory import host_buffer, numa_node_of_device


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * host_memory._PAGE


def test_a_buffer_is_zeroed_resident_and_freed() -> None:
    gc.collect()
    before = resident_bytes()
    buffer = host_buffer((96, 1 << 20), pinned=False)
    assert buffer.shape == (96, 1 << 20) and buffer.dtype == torch.uint8
    assert resident_bytes() - before > 90 << 20
    assert not buffer.any()
    del buffer
    gc.collect()
    assert resident_bytes() - before < 30 << 20


def test_pages_may_wait_for_their_first_use() -> None:
    gc.collect()
    before = resident_bytes()
    buffer = host_buffer((64 << 20,), pinned=False, prefault=False, numa_node=0)
    assert resident_bytes() - before < 30 << 20
    buffer[0] = 1


def test_too_large_a_buffer_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 1_000)
    with pytest.raises(MemoryError, match=r"4,096 bytes .* 1,000 are free; lower .*'host_gib'"):
        host_buffer((4096,), pinned=False)


def test_memory_is_measured() -> None:
    free = host_memory.available_bytes()
    assert free is not None and free > 1 << 20


def test_a_machine_without_gpus_has_no_node() -> None:
    if not torch.cuda.is_available():
        assert numa_node_of_device(0) is None
