"""What a resumed request waits for while its KV comes from host memory.

    python -m tests.benchmarks.bench_layerwise [--cached 16384] [--new 32] [--rounds 9] [--plot F]

One engine, five ways in turn for the same prompt with a new end: KV on the device (computation
alone), the same while plain copies run on the other core (`shared`: what computation takes where
the memory is not for itself), layer by layer from host memory, all layers before the step, and
layer by layer a step ahead while another request is computed. Needs two idle cores: computation has
the first one of this process, copies have the last one. Prints one JSON line of medians. With
--plot, draws the last step of each of the three ways that load.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.tier_model import (
    BLOCK,
    FULL_LAYERS,
    add,
    exact_bytes,
    first_token,
    scheduler_of,
    settle,
    tokens,
    write_model,
)
from tests.engine import Engine

WAYS = ("device", "shared", "layerwise", "whole", "ahead")
LOADS = WAYS[2:]


@dataclass
class Timeline:
    """One request: when each layer was copied, waited for and run; seconds from its start."""

    ready: float = 0.0
    """Start of the request's own step."""
    end: float = 0.0
    copies: list[tuple[int, float, float]] = field(default_factory=list)
    waits: list[tuple[int, float, float]] = field(default_factory=list)
    attention: list[tuple[int, float, float]] = field(default_factory=list)


class Recorder:
    """Listens to the mover of an engine in this process."""

    def __init__(self, mover: Any) -> None:
        self.mover = mover
        self.groups = [region.group for region in mover.regions.layers]
        self.line = Timeline()
        self._origin = 0.0
        self._attention = 0.0
        place = {id(r.device): i for i, r in enumerate(mover.regions.layers)}
        mover.inbound.observe = lambda begin, end, dst: self.line.copies.append(
            (place[id(dst)], begin - self._origin, end - self._origin)
        )
        self.exposed = {"loads": 0.0, "stores": 0.0}
        """Seconds that steps were blocked by loads, and by stores of the step before."""
        self._load, self._save, self._start = mover.layer_load, mover.layer_save, mover.start
        mover.layer_load, mover.layer_save, mover.start = self.load, self.save, self.start
        self._wait, mover._wait = mover._wait, self.wait

    def begin(self) -> None:
        """A request starts."""
        self.line = Timeline()
        self.exposed = dict.fromkeys(self.exposed, 0.0)
        self._origin = time.perf_counter()

    def start(self, moves: Any) -> None:
        """A step starts; a request's last one is its own."""
        if moves.forward:
            self.line.ready = time.perf_counter() - self._origin
            self.line.waits.clear()
            self.line.attention.clear()
        self._start(moves)

    def wait(self, ticket: Any) -> None:
        """The step waits for a ticket."""
        begin = time.perf_counter()
        self._wait(ticket)
        queue = getattr(ticket, "_queue", self.mover.inbound)
        what = "loads" if queue is self.mover.inbound else "stores"
        self.exposed[what] += time.perf_counter() - begin

    def load(self, name: str) -> None:
        """A layer's attention is about to run."""
        begin = time.perf_counter()
        self._load(name)
        self._attention = time.perf_counter()
        layer = self.mover.index[name]
        self.line.waits.append((layer, begin - self._origin, self._attention - self._origin))

    def save(self, name: str) -> None:
        """It has run."""
        end = time.perf_counter()
        layer = self.mover.index[name]
        self.line.attention.append((layer, self._attention - self._origin, end - self._origin))
        self._save(name)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    ttft_s: float
    """From its arrival, or from the start of its own step where another one ran before."""
    cached: int
    exposed_s: float
    """What steps waited for loads."""
    stores_s: float
    """What steps waited for stores of the step before."""
    load_s: float
    """Time of the copies."""
    first_s: float
    """Time of the first full layer's copy."""
    loaded_bytes: int


def measure(llm: Any, cached: int, new: int, rounds: int, before: int) -> dict[str, Any]:
    """All ways in turn; runs in the engine's process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    mover = get_kv_transfer_group().mover
    pinned = pin()
    recorder = Recorder(mover)
    director = scheduler_of(llm).connector.director
    rng = random.Random(5)
    prefix = tokens(rng, cached)
    first_token(llm, "store", [*prefix, *tokens(rng, new)])
    settle(llm)
    samples: dict[str, list[Sample]] = defaultdict(list)
    lines: dict[str, Timeline] = {}
    for number in range(rounds + 1):
        for way in WAYS:
            name = f"{way}-{number}"
            if way not in LOADS:
                first_token(llm, f"{name}-warm", [*prefix, *tokens(rng, new)])
            else:
                assert scheduler_of(llm).reset_prefix_cache()
            settle(llm)
            mover.layerwise = way != "whole"
            seen = dict(director.figures)
            recorder.begin()
            if way == "ahead":
                add(llm, f"{name}-before", tokens(rng, before))
            with copying() if way == "shared" else nullcontext():
                ttft, found = first_token(llm, name, [*prefix, *tokens(rng, new)])
            line = recorder.line
            line.end = ttft
            exposed = dict(recorder.exposed)
            settle(llm)
            loaded = sum(
                director.figures[key] - seen.get(key, 0)
                for key in ("host_loaded_bytes_0", "host_loaded_bytes_1")
            )
            if way == "ahead":
                ttft -= line.ready
            firsts = [end - begin for layer, begin, end in line.copies if layer == 0]
            copied = sum(end - begin for _, begin, end in line.copies)
            if number:  # the first round warms up
                waited = (exposed["loads"], exposed["stores"])
                samples[way].append(Sample(ttft, found, *waited, copied, sum(firsts), int(loaded)))
            lines[way] = line
    figures = {way: summary(samples[way]) for way in WAYS}
    return {
        "ways": figures,
        "exact_bytes": exact_bytes(llm, cached),
        "lines": lines,
        "groups": recorder.groups,
        "pinned": pinned,
    }


@contextmanager
def copying(size: int = 64 << 20) -> Iterator[None]:
    """The last core copies between two buffers that no cache holds, until the block ends."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    stop, started = threading.Event(), threading.Event()

    def copy() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(os.getppid()))[-1:])
        while not stop.is_set():
            np.copyto(target, source)
            started.set()

    thread = threading.Thread(target=copy)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def pin() -> dict[str, list[int]]:
    """Give copies a core of their own. Returns the cores as they were found."""
    cores = sorted(os.sched_getaffinity(0))
    found = {"compute": cores}
    for thread in threading.enumerate():
        if thread.name.startswith("kv-") and thread.native_id:
            found[thread.name] = sorted(os.sched_getaffinity(thread.native_id))
            os.sched_setaffinity(thread.native_id, cores[-1:])
    os.sched_setaffinity(0, cores[:1])
    return found


def summary(samples: list[Sample]) -> dict[str, Any]:
    """Medians in milliseconds."""

    def median(name: str) -> float:
        return round(1e3 * statistics.median(getattr(s, name) for s in samples), 2)

    ttfts = sorted(s.ttft_s for s in samples)
    return {
        "ttft_ms": median("ttft_s"),
        "ttft_min_max_ms": [round(1e3 * ttfts[0], 2), round(1e3 * ttfts[-1], 2)],
        "exposed_ms": median("exposed_s"),
        "store_wait_ms": median("stores_s"),
        "load_ms": median("load_s"),
        "first_layer_ms": median("first_s"),
        "cached_tokens": sorted({s.cached for s in samples}),
        "loaded_bytes": sorted({s.loaded_bytes for s in samples}),
        "rounds": len(samples),
    }


def verdict(measured: dict[str, Any]) -> dict[str, Any]:
    """The figures beside what they should be."""
    ways = measured["ways"]
    layerwise, whole, ahead = ways["layerwise"], ways["whole"], ways["ahead"]
    compute, load = ways["device"]["ttft_ms"], layerwise["load_ms"]
    shared = ways["shared"]["ttft_ms"]
    allowed = layerwise["first_layer_ms"] + 0.05 * load
    return {
        "exposed_allowed_ms": round(allowed, 2),
        "exposed_share_of_load": round(layerwise["exposed_ms"] / load, 3),
        "first_layer_share_of_load": round(layerwise["first_layer_ms"] / load, 3),
        "exposed_ok": layerwise["exposed_ms"] <= allowed,
        "ahead_exposed_share_of_load": round(ahead["exposed_ms"] / ahead["load_ms"], 3),
        "ttft_over_max_of_load_and_compute": round(layerwise["ttft_ms"] / max(load, compute), 3),
        "ttft_over_max_of_load_and_shared": round(layerwise["ttft_ms"] / max(load, shared), 3),
        "ttft_whole_over_layerwise": round(whole["ttft_ms"] / layerwise["ttft_ms"], 3),
        "ttft_ahead_over_device": round(ahead["ttft_ms"] / compute, 3),
        "bytes_exact": all(ways[way]["loaded_bytes"] == [measured["exact_bytes"]] for way in LOADS),
    }


def draw(lines: dict[str, Timeline], groups: list[int], file: Path) -> None:
    """A timeline of each step: layers downwards, milliseconds to the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = ("layerwise", "whole", "ahead")
    titles = {
        "layerwise": "Layer by layer",
        "whole": "All layers before the step (tier_layerwise off)",
        "ahead": "A step ahead, while another request is computed",
    }
    figure, panels = pyplot.subplots(len(chosen), 1, figsize=(9, 10), layout="constrained")
    for panel, way in zip(panels, chosen, strict=True):
        line = lines[way]
        bars = (
            ("load", line.copies, "#4878cf", 0.0),
            ("wait for load", line.waits, "#d65f5f", 0.38),
            ("attention", line.attention, "#6acc65", 0.38),
        )
        for label, spans, colour, lower in bars:
            for layer, begin, end in spans:
                panel.barh(
                    layer + lower - 0.19, (end - begin) * 1e3, 0.36, begin * 1e3, color=colour
                )
            panel.barh(0, 0, 0, 0, color=colour, label=label)
        panel.axvline(line.ready * 1e3, color="black", linewidth=0.8, linestyle=":")
        panel.axvline(line.end * 1e3, color="black", linewidth=0.8)
        panel.set_title(f"{titles[way]}: first token after {line.end * 1e3:.0f} ms", fontsize=10)
        panel.set_yticks(range(len(groups)), [f"{i} {'FS'[g]}" for i, g in enumerate(groups)])
        panel.tick_params(axis="y", labelsize=6)
        panel.invert_yaxis()
        panel.set_xlim(left=0)
    panels[0].legend(loc="lower left", fontsize=8)
    panels[-1].set_xlabel("ms since the request (dotted: its own step starts; line: first token)")
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cached", type=int, default=16_384)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--before", type=int, default=512, help="tokens of the request before")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    # The child reads these when it starts: a second thread would compute on the core of the copies.
    first = str(min(os.sched_getaffinity(0)))
    os.environ.update(OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND=first)
    blocks = (args.cached + args.before) // BLOCK * 5 // 4 + 16
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine(
            write_model(Path(folder), args.heads),
            environ={"VLLM_CPU_KVCACHE_SPACE": "2"},
            block_size=BLOCK,
            max_model_len=args.cached + 1024,
            max_num_batched_tokens=args.before,  # the request after it has to wait
            max_num_seqs=2,
            num_gpu_blocks_override=blocks,
            additional_config={"mimo": {"swa_pool_blocks": 64, "host_gib": 1.5}},
        ) as engine,
    ):
        measured = engine.run(measure, args.cached, args.new, args.rounds, args.before)
    lines, groups = measured.pop("lines"), measured.pop("groups")
    if args.plot:
        draw(lines, groups, args.plot)
    result = {
        "benchmark": "layerwise",
        "cached": args.cached,
        "new": args.new,
        "full_layers": FULL_LAYERS,
        **measured,
        **verdict(measured),
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
