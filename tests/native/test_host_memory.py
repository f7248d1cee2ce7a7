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


def mapping_of(address: int) -> str:
    """The line of /proc/self/maps with an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            return line
    return ""


def test_pages_are_private_since_shared_ones_are_never_huge() -> None:
    buffer = host_buffer((4 << 20,), pinned=False)
    assert mapping_of(buffer.data_ptr()).split()[1] == "rw-p"


class Cudart:
    """What `host_buffer` uses of CUDA. Notes whether the memory was there at each call."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.calls: list[tuple[str, int, bool]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("register", address, bool(mapping_of(address))))
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address, bool(mapping_of(address))))
        return 0


def test_pinned_memory_is_unpinned_before_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    buffer = host_buffer((64, 1 << 20), pinned=True)
    address = buffer.data_ptr()
    part = buffer[3, 5:]
    del buffer
    gc.collect()
    assert cudart.calls == [("register", address, True)]
    del part
    gc.collect()
    assert cudart.calls[1:] == [("unregister", address, True)]


def test_memory_that_cannot_be_pinned_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = Cudart(error=2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    with pytest.raises(MemoryError, match="pinning 4,096 bytes of host memory failed: 2"):
        host_buffer((4096,), pinned=True)
    assert [name for name, *_ in cudart.calls] == ["register"]


def test_control_groups_limit_what_is_free(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    inner = cgroups / "pod" / "container"
    inner.mkdir(parents=True)
    assert host_memory.available_bytes(proc, cgroups) is None
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    assert host_memory.available_bytes(proc, cgroups) == 65536
    (proc / "self" / "cgroup").write_text("0::/pod/container\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("30000\n")
    assert host_memory.available_bytes(proc, cgroups) == 65536
    # The outer group has 10,000 left and 5,000 of files that can be dropped.
    (inner.parent / "memory.max").write_text("50000\n")
    (inner.parent / "memory.current").write_text("40000\n")
    (inner.parent / "memory.stat").write_text("anon 35000\ninactive_file 5000\n")
    assert host_memory.available_bytes(proc, cgroups) == 15000
