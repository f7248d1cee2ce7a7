"""CPU, NUMA and memory, with the settings that vLLM's CPU backend wants for them.

The folders ``/proc`` and ``/sys`` are parameters, so that other machines can be examined in tests.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from vllm_mimo.doctor.report import Finding, Status

SECTION = "machine"
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
GIB = 1 << 30


def machine_findings(
    environ: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
) -> list[Finding]:
    """Cores, instruction sets, NUMA nodes and balancing, thread binding, memory, KV cache space."""
    nodes = numa_nodes(sys)
    return [
        Finding(SECTION, "cores", Status.OK, _usable_cores()),
        _instruction_sets(proc),
        Finding(SECTION, "NUMA nodes", Status.OK, nodes or None),
        _numa_balancing(proc, nodes),
        _thread_binding(environ, nodes),
        *_memory(environ, proc),
    ]


def numa_nodes(sys: Path = Path("/sys")) -> dict[str, str]:
    """Node number -> its CPUs as a list such as ``0-27,56-83``; empty when the kernel says none.

    Nodes without CPUs (memory only) are left out.
    """
    found = {}
    for path in (sys / "devices/system/node").glob("node*/cpulist"):
        number, cpus = path.parent.name.removeprefix("node"), _read(path)
        if number.isdigit() and cpus:
            found[number] = cpus
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _usable_cores() -> int:
    """Cores that this process may use, which in a container is less than the machine has."""
    return len(os.sched_getaffinity(0))


def _instruction_sets(proc: Path) -> Finding:
    flags: set[str] = set()
    for line in _read(proc / "cpuinfo").splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            break
    value = [flag for flag in CPU_FLAGS if flag in flags]
    name = "instruction sets"
    if not flags:
        return Finding(SECTION, name, Status.INFO, platform.machine())
    if "avx2" not in flags:
        return Finding(
            SECTION,
            name,
            Status.WARN,
            value,
            "vLLM's CPU build needs AVX2; a GPU is the only way to run here.",
        )
    if "avx512f" not in flags:
        advice = "AVX-512 and AMX are absent: the CPU build runs, slowly."
        return Finding(SECTION, name, Status.INFO, value, advice)
    if "amx_tile" not in flags:
        advice = "AMX is absent: bfloat16 matrix products on the CPU are several times slower."
        return Finding(SECTION, name, Status.INFO, value, advice)
    return Finding(SECTION, name, Status.OK, value)


def _numa_balancing(proc: Path, nodes: Mapping[str, str]) -> Finding:
    value = _read(proc / "sys/kernel/numa_balancing") or None
    if value in (None, "0"):
        return Finding(SECTION, "numa_balancing", Status.OK, value)
    advice = (
        "Automatic NUMA balancing moves pages while the engine runs, which cost the MiMo team 10 % "
        "(arXiv 2607.13095). Switch it off: sysctl -w kernel.numa_balancing=0"
    )
    # With one node there is nowhere to move pages to.
    status = Status.WARN if len(nodes) > 1 else Status.INFO
    return Finding(SECTION, "numa_balancing", status, value, advice)


def _thread_binding(environ: Mapping[str, str], nodes: Mapping[str, str]) -> Finding:
    name = "VLLM_CPU_OMP_THREADS_BIND"
    value = environ.get(name)
    advice = ""
    if value is None and len(nodes) > 1:
        advice = (
            f"On a CPU, one rank for each NUMA node is fastest: --tensor-parallel-size {len(nodes)}"
            f' with {name}="{"|".join(nodes.values())}" (unset means auto).'
        )
    return Finding(SECTION, name, Status.INFO if advice else Status.OK, value, advice)


def _memory(environ: Mapping[str, str], proc: Path) -> list[Finding]:
    sizes = {}
    for line in _read(proc / "meminfo").splitlines():
        key, _, rest = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            sizes[key] = int(rest.split()[0]) * 1024 / GIB
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    value = {
        "total_gib": total and round(total, 1),
        "available_gib": available and round(available, 1),
    }
    findings = [Finding(SECTION, "memory", Status.OK if total else Status.INFO, value)]

    name = "VLLM_CPU_KVCACHE_SPACE"
    space = environ.get(name)
    status, advice = Status.OK, ""
    if space and not space.isdigit():
        status, advice = Status.WARN, "vLLM reads a whole number of GiB and fails on anything else."
    elif space and available is not None and int(space) > available:
        status = Status.WARN
        advice = f"{space} GiB are more than the {available:.1f} GiB available: vLLM will refuse."
    elif not space:
        status = Status.INFO
        advice = (
            "On a CPU, unset takes --gpu-memory-utilization of a NUMA node's whole memory and "
            "fails if other processes hold part of it. Set the GiB for each rank, for example 1 "
            "for tests."
        )
    findings.append(Finding(SECTION, name, status, space, advice))
    return findings


def _read(path: Path) -> str:
    """The text of a kernel file, stripped; empty when it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
