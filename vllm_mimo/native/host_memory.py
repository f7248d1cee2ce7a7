"""Large buffers in host memory: pinned for GPUs, touched before use, near the device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import mmap
import os
import platform
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

logger = logging.getLogger("vllm.vllm_mimo")

_PAGE = mmap.PAGESIZE
_TOUCHERS = 4
_SYS_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_PREFERRED = 1
_REGISTER_PORTABLE = 1  # pinned for every GPU that the process uses


class _Pages(mmap.mmap):
    """Anonymous memory, which ends its registration with CUDA before it is unmapped."""

    unpin: Callable[[], object] | None = None
    owner = 0

    def __del__(self) -> None:
        # A forked child has neither these pages nor a CUDA context.
        if self.unpin is not None and self.owner == os.getpid():
            with contextlib.suppress(Exception):  # at the end of the process CUDA may be gone
                self.unpin()


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
    # Private: Linux gives no huge pages to shared anonymous memory as it is set up by default.
    memory = _Pages(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    if numa_node is not None:
        _prefer_node(memory, size, numa_node)
    flat = torch.frombuffer(memory, dtype=torch.uint8)[: math.prod(shape)]
    if prefault or pinned:
        _touch(flat)
    if pinned:
        _pin(memory, flat)
    return flat.reshape(tuple(shape))


def available_bytes(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes of memory that this process may still take; None where nobody knows.

    The least of what the machine has free and what the process's control groups leave it. Both
    count pages of files that can be dropped as free.
    """
    found = []
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for line in _read(proc / "self" / "cgroup").splitlines():
        if line.startswith("0::"):
            own = cgroups / line.removeprefix("0::/")
            for group in (own, *own.parents):
                left = _left_in(group) if group.is_relative_to(cgroups) else None
                found += [] if left is None else [left]
    return min(found, default=None)


def _left_in(group: Path) -> int | None:
    """Bytes that a control group (version 2) has left; None without a limit."""
    limit, used = _read(group / "memory.max"), _read(group / "memory.current")
    if not limit.isdigit() or not used.isdigit():
        return None
    stat = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines())
    return max(0, int(limit) - int(used) + int(stat.get("inactive_file", 0)))


def _read(path: Path) -> str:
    """The text of a kernel file, stripped; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


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
    number = _SYS_MBIND.get(platform.machine())
    if number is None or not Path(f"/sys/devices/system/node/node{node}").exists():
        return
    words = node // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    mask[node // 64] = 1 << node % 64
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    failed = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(start),
        ctypes.c_ulong(-(-size // _PAGE) * _PAGE),
        ctypes.c_int(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(64 * words + 1),  # the kernel counts one bit too few
        ctypes.c_uint(0),
    )
    if failed:
        logger.info(
            "host memory for KV is not bound to NUMA node %d: %s",
            node,
            os.strerror(ctypes.get_errno()),
        )


def _touch(flat: torch.Tensor) -> None:
    """Write every page, in a few threads: torch lets go of Python's lock meanwhile."""
    parts = flat.chunk(_TOUCHERS) if flat.numel() > (64 << 20) else (flat,)
    threads = [threading.Thread(target=part.zero_) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pin(memory: _Pages, flat: torch.Tensor) -> None:
    """Page-lock a buffer until its memory is freed."""
    # A fork would share the pages, and the first write then move them from under the GPU.
    memory.madvise(mmap.MADV_DONTFORK)
    cudart = torch.cuda.cudart()
    address = flat.data_ptr()
    error = cudart.cudaHostRegister(address, flat.numel(), _REGISTER_PORTABLE)
    if int(error) != 0:
        raise MemoryError(f"pinning {flat.numel():,} bytes of host memory failed: {error}")
    memory.owner = os.getpid()
    memory.unpin = functools.partial(cudart.cudaHostUnregister, address)
