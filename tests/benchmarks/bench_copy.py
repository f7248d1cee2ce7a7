"""Speed of the block copy beside a plain copy of the same bytes, and beside torch's indexing.

    python -m tests.benchmarks.bench_copy [--mib 256] [--rounds 9]

Everything is touched before. Each round copies the same bytes in turn by all of them, blocks in
random order, with one thread; prints one JSON line: GB/s (medians), ratios to the plain copy.
"""

from __future__ import annotations

import argparse
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


def measure(size: int, total: int, rounds: int) -> dict[str, float]:
    """Medians in GB/s by name, for blocks of `size` bytes."""
    blocks = total // size
    a, b = (host_buffer((blocks * size,), pinned=False) for _ in range(2))
    src, dst = (BlockView(buffer, 0, size, size, blocks) for buffer in (a, b))
    order = list(range(blocks))
    random.Random(size).shuffle(order)
    pairs = torch.tensor([[s, d] for d, s in enumerate(order)])
    ways: dict[str, Callable[[], object]] = {
        "memcpy": lambda: b.copy_(a),
        "ours": lambda: copy_blocks(dst, src, pairs, 1),
        "torch_indexing": lambda: copy_blocks_by_torch(dst, src, pairs),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            if i:
                times[name].append(time.perf_counter() - begin)
    return {name: blocks * size / statistics.median(t) / 1e9 for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="MiB that are copied at a time")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {}
    for size in SIZES:
        speed = measure(size, args.mib << 20, args.rounds)
        result[f"{size >> 10} KiB"] = {
            **{f"{name}_gb_s": round(value, 2) for name, value in speed.items()},
            "ours_to_memcpy": round(speed["ours"] / speed["memcpy"], 3),
            "ours_to_torch_indexing": round(speed["ours"] / speed["torch_indexing"], 3),
        }
    print(json.dumps({"library": describe(), "blocks": result}))


if __name__ == "__main__":
    main()
