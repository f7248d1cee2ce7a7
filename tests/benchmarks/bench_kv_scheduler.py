"""Scheduler cost of the KV cache, and bytes per running request, beside vLLM's.

    python -m tests.benchmarks.bench_kv_scheduler [--lengths 131072 1048576] [--rounds 9]

Drives both real managers, in turn, with one resumed request of each length (one rank of V2.5 at
TP8, block 64, everything cached) and prints one JSON line: medians in microseconds and ratios, and
the bytes that one request holds while it prefills in chunks of 8,192 tokens and while it decodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from vllm_mimo.kv.planning import block_bytes
from vllm_mimo.replay.deployment import Deployment, load_geometry
from vllm_mimo.replay.mimo_policy import MimoPolicy
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.replay.vllm_policy import VllmPolicy
from vllm_mimo.traces.form import TraceRequest

BUDGET = 60 * 10**9
DECODED = 256
BLOCK = 64


class Subject:
    """One manager with a prompt of `length` tokens in its cache."""

    def __init__(self, policy: Any, length: int) -> None:
        self.driver = policy.build(BUDGET, time.monotonic)
        self.length, self.number = length, 0
        self.times: dict[str, list[float]] = {}
        self.bytes: dict[str, int] = {}
        self.turn(timed=False)

    def held(self) -> int:
        """Bytes of the blocks that running requests hold."""
        used = self.driver.used_blocks()
        manager = self.driver.manager
        if "all" in used:  # one pool: a block is as large as the largest group's
            config = manager.kv_cache_config
            size = config.kv_cache_tensors[0].size // config.num_blocks
            return used["all"] * size
        sizes = {
            kind: block_bytes(group)
            for kind, group in zip(
                ("full", "swa"), manager.kv_cache_config.kv_cache_groups, strict=True
            )
        }
        return sum(used[kind] * sizes[kind] for kind in sizes)

    def turn(self, timed: bool = True) -> None:
        """The same prompt with another end: look-up, admission, decoding, release."""
        request = self.request()
        start = time.perf_counter()
        found = self.driver.lookup(request)
        looked = time.perf_counter()
        first = min(8192, request.num_tokens - found.resume)
        assert self.driver.admit(request, found, first, idle=True)
        admitted = time.perf_counter()
        while request.num_computed_tokens < request.num_tokens:
            rest = request.num_tokens - request.num_computed_tokens
            assert self.driver.step(request, min(8192, rest))
            self.bytes["prefill"] = max(self.bytes.get("prefill", 0), self.held())
        decode = time.perf_counter()
        for _ in range(DECODED):
            request.append_output(1)
            assert self.driver.step(request, 1)
        decoded = time.perf_counter()
        self.bytes["decode"] = self.held()
        self.driver.finish(request, None)
        freed = time.perf_counter()
        if timed:
            self.note("lookup", looked - start)
            self.note("admit", admitted - looked)
            self.note("decode_step", (decoded - decode) / DECODED)
            self.note("free", freed - decoded)
            self.note("request", freed - start)

    def request(self) -> ReplayRequest:
        """The prompt with 64 tokens of its own at the end."""
        self.number += 1
        trace = TraceRequest(
            arrival_s=0.0,
            session=str(self.number),
            input_tokens=self.length + BLOCK,
            output_tokens=DECODED,
            block_size=BLOCK,
            prompt_blocks=((0, self.length // BLOCK), (10**9 + self.number, 1)),
        )
        return ReplayRequest(trace, self.number, self.driver.hash_block_size)

    def note(self, what: str, seconds: float) -> None:
        self.times.setdefault(what, []).append(seconds * 1e6)


def compare(make: dict[str, Callable[[], Any]], length: int, rounds: int) -> dict[str, Any]:
    """Medians in microseconds per subject, and ours over vLLM's, of interleaved rounds."""
    subjects = {name: Subject(build(), length) for name, build in make.items()}
    for _ in range(rounds):
        for subject in subjects.values():
            subject.turn()
    medians = {
        name: {what: round(statistics.median(t), 2) for what, t in subject.times.items()}
        for name, subject in subjects.items()
    }
    ratio = {what: round(medians["mimo"][what] / t, 3) for what, t in medians["vllm"].items()}
    held = {name: subject.bytes for name, subject in subjects.items()}
    bytes_ratio = {w: round(held["mimo"][w] / n, 3) for w, n in held["vllm"].items()}
    return {
        "length": length,
        "microseconds": medians,
        "ratio": ratio,
        "bytes": held,
        "bytes_ratio": bytes_ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[131_072, 1_048_576])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    deployment = Deployment(load_geometry("MiMo-V2.5", 8), 8, max(args.lengths) + 4096)
    make = {
        "vllm": lambda: VllmPolicy("vllm", deployment, 0),
        "mimo": lambda: MimoPolicy("mimo", deployment, {}),
    }
    results = [compare(make, length, args.rounds) for length in args.lengths]
    print(json.dumps({"benchmark": "kv_scheduler", "results": results}))


if __name__ == "__main__":
    main()
