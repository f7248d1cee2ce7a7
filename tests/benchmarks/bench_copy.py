"""Speed of the block copy beside a plain copy of the same bytes, and beside torch's ways.

    python -m tests.benchmarks.bench_copy [--mib 256] [--rounds 9]

Everything is touched before. Each round copies the same bytes by all of them, blocks in random
order; prints one JSON line: GB/s (medians) with 1 and 2 threads, and ratios.

`copy_` is torch's of the whole buffer with as many threads, `memcpy` libc's (one thread only),
`fallback` what we do without the library, `index` index_select into index_copy_. (vLLM's CPU build
has no operation that copies blocks.)
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable

import torch

from vllm_mimo.native.blocks import BlockView, copy_blocks, copy_blocks_by_torch
from vllm_mimo.native.host_memory import host_buffer
from vllm_mimo.native.library import describe

SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)


def ways(src: BlockView, dst: BlockView, threads: int) -> dict[str, Callable[[], object]]:
    """What is compared, by name."""
    a, b, size = src.storage, dst.storage, src.block_bytes
    order = list(range(src.blocks))
    random.Random(size).shuffle(order)
    pairs = torch.tensor([[s, d] for d, s in enumerate(order)])
    found: dict[str, Callable[[], object]] = {
        "copy_": lambda: b.copy_(a),
        "ours": lambda: copy_blocks(dst, src, pairs, threads),
    }
    if threads > 1:
        return found
    memcpy = ctypes.CDLL(None).memcpy
    ends = (ctypes.c_void_p(b.data_ptr()), ctypes.c_void_p(a.data_ptr()))
    found["memcpy"] = lambda: memcpy(*ends, ctypes.c_size_t(a.numel()))
    found["fallback"] = lambda: copy_blocks_by_torch(dst, src, pairs)
    rows, columns = (a.view(-1, size), b.view(-1, size))
    found["index"] = lambda: columns.index_copy_(0, pairs[:, 1], rows.index_select(0, pairs[:, 0]))
    return found


def measure(size: int, total: int, rounds: int, threads: int) -> dict[str, float]:
    """Medians in GB/s by name, for blocks of `size` bytes."""
    blocks = total // size
    a, b = (host_buffer((blocks * size,), pinned=False) for _ in range(2))
    src, dst = (BlockView(buffer, 0, size, size, blocks) for buffer in (a, b))
    torch.set_num_threads(threads)
    compared = ways(src, dst, threads)
    times: dict[str, list[float]] = {name: [] for name in compared}
    chosen = random.Random(0)
    for i in range(rounds + 1):
        # In another order each time: what ran before decides what is in the caches.
        for name in chosen.sample(list(compared), len(compared)):
            begin = time.perf_counter()
            compared[name]()
            if i:
                times[name].append(time.perf_counter() - begin)
    return {name: blocks * size / statistics.median(t) / 1e9 for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="MiB that are copied at a time")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    result = {}
    for threads in (1, 2):
        for size in SIZES:
            speed = measure(size, args.mib << 20, args.rounds, threads)
            result[f"{size >> 10} KiB, {threads} threads"] = {
                **{f"{name}_gb_s": round(value, 2) for name, value in speed.items()},
                **{
                    f"ours_to_{name}": round(speed["ours"] / value, 2)
                    for name, value in speed.items()
                    if name != "ours"
                },
            }
    print(json.dumps({"library": describe(), "mib": args.mib, "blocks": result}))


if __name__ == "__main__":
    main()
