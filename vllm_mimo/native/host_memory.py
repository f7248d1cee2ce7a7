"""Large buffers in host memory: pinned for GPUs, touched before use, near the device."""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

logger = logging.getLogger("vllm.vllm_mimo")

_PAGE = mmap.PAGESIZE
_TOUCHERS = 4
_SYS_MBIND = 237  # x86-64
_MPOL_PREFERRED = 1


def host_buffer(
    shape: Sequence[int],
    *,
    pinned: bool,
    numa_node: int | None = None,
    prefault: bool = True,
) -> torch.Tensor:
    """A zeroed uint8 tensor of host memory, which is freed with it unless it is pinned.

    Args:
        shape: of the tensor.
        pinned: page-locked, for copies from and to a GPU.
        numa_node: where its pages are to lie, if the machine has several.
        prefault: write every page now rather than on first use, when a copy would wait for it.

    Raises MemoryError, with both sizes, where the machine has less memory free.
    """
    size = max(1, math.prod(shape))
    free = available_bytes()
    if free is not None and size > free:
        raise MemoryError(
            f"{size:,} bytes of host memory are asked for KV, {free:,} are free; lower the key "
            "'host_gib' (it is for each rank)"
        )
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    if numa_node is not None:
        _prefer_node(memory, size, numa_node)
    flat = torch.frombuffer(memory, dtype=torch.uint8)[: math.prod(shape)]
    if prefault or pinned:
        _touch(flat)
    if pinned:
        _pin(flat)
    return flat.reshape(tuple(shape))


def available_bytes() -> int | None:
    """Bytes of memory that this process may still take; None where nobody knows."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            found.append(max(0, int(limit) - used))
    except (OSError, ValueError, IndexError):
        pass
    return min(found, default=None)


def numa_node_of_device(index: int) -> int | None:
    """The NUMA node of a CUDA device; None where the machine has one, or does not tell."""
    try:
        properties = torch.cuda.get_device_properties(index)
        address = (
            f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:"
            f"{properties.pci_device_id:02x}.0"
        )
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (OSError, ValueError, RuntimeError, AttributeError, AssertionError):
        return None
    return node if node >= 0 else None


def _prefer_node(memory: mmap.mmap, size: int, node: int) -> None:
    """Ask the kernel for pages of one node; it may give others."""
    mask = ctypes.c_ulong(1 << node)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(
        _SYS_MBIND,
        ctypes.c_void_p(start),
        ctypes.c_ulong(-(-size // _PAGE) * _PAGE),
        _MPOL_PREFERRED,
        ctypes.byref(mask),
        ctypes.c_ulong(64),
        ctypes.c_uint(0),
    )
    if failed:
        logger.info("host memory for KV is not bound to NUMA node %d", node)


def _touch(flat: torch.Tensor) -> None:
    """Write every page, in a few threads: torch lets go of Python's lock meanwhile."""
    parts = flat.chunk(_TOUCHERS) if flat.numel() > (64 << 20) else (flat,)
    threads = [threading.Thread(target=part.zero_) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pin(flat: torch.Tensor) -> None:
    """Page-lock a buffer for as long as the process lives."""
    error = torch.cuda.cudart().cudaHostRegister(flat.data_ptr(), flat.numel(), 0)
    if int(error) != 0:
        raise MemoryError(f"pinning {flat.numel():,} bytes of host memory failed: {error}")
