"""Time to first token of a resumed prompt from our host tier and from others' connectors.

    OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=1 python -m tests.benchmarks.bench_tiers
        [--cached 8192] [--new 32] [--rounds 7] [--only NAME ...] [--peer-path NAME=DIR ...]

Each system is an engine in a child process of its own, with the same model and arguments but for
the connector; all are alive at once and take turns within each round, in an order that rotates,
on the same two cores: the first computes, the second has all other threads. Before a measured
request the device's cache is emptied, so that only the tier below can serve the prefix that was
stored before; `recompute` has none, and `device` is the same engine with its cache left alone.
Peers run without our two pools, as they must. A peer that is no part of vLLM is taken from
--peer-path (given more than once if it has several folders) by its own child alone. A system that
does not start or fails is left out, with the last line of its error. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.tier_model import (
    BLOCK,
    exact_bytes,
    scheduler_of,
    settle,
    tokens,
    write_model,
)
from tests.engine import Engine, EngineFailure
from vllm_mimo.serving.process import free_port

OUTPUT = 4
"""Tokens that each request computes; all systems must give the same."""
GIB = 1 << 30
ONE_POOL = {"two_pools": False}


@dataclass(frozen=True, slots=True)
class System:
    """What is compared."""

    mimo: dict[str, Any] = field(default_factory=lambda: ONE_POOL)
    connector: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """`kv_connector_extra_config`; "{folder}" and "{port}" in its strings are filled in."""
    server: tuple[str, ...] = ()
    """A command that has to run beside it: a Python module or a file in --peer-path, arguments."""
    environ: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """JSON files in its folder."""


SYSTEMS = {
    "recompute": System(),
    "host": System({"swa_pool_blocks": 200, "host_gib": 1.5}),
    "offloading": System(
        connector="OffloadingConnector", extra={"cpu_bytes_to_use": 2 * GIB, "block_size": BLOCK}
    ),
    "simple_cpu": System(
        connector="SimpleCPUOffloadConnector", extra={"cpu_bytes_to_use": 2 * GIB}
    ),
    "example": System(connector="ExampleConnector", extra={"shared_storage_path": "{folder}"}),
    "lmcache": System(
        connector="LMCacheConnectorV1",
        environ={"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": "2"},
    ),
    "lmcache_mp": System(
        connector="LMCacheMPConnector",
        extra={"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": "{port}"},
        server=(
            "lmcache.v1.multiprocess.server",
            "--port",
            "{port}",
            "--l1-size-gb",
            "2",
            "--eviction-policy",
            "LRU",
            "--chunk-size",
            "64",
        ),
    ),
    "mooncake": System(
        connector="MooncakeStoreConnector",
        server=("mooncake/mooncake_master", "--rpc_port", "{port}", "--metrics_port", "0"),
        environ={"MOONCAKE_CONFIG_PATH": "{folder}/store.json"},
        files={
            "store.json": {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": "127.0.0.1:{port}",
                "protocol": "tcp",
                "global_segment_size": 2 * GIB,
                "local_buffer_size": GIB // 2,
            }
        },
    ),
}
WARM = "device"
"""The engine of `recompute` with its cache left alone: what no tier can beat."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request."""

    ttft_s: float
    cached: int
    """Prompt tokens found in device cache or tier."""
    moved: int | None
    """Bytes that came from the tier, where they can be counted."""
    output: tuple[int, ...]


def _no_bytes() -> int | None:
    return None


_moved: Callable[[], int | None] = _no_bytes
"""Bytes that the tier of this process has given so far."""


def watch(llm: Any, name: str) -> None:
    """Count bytes; runs in the engine's process, like all down to `pin`."""
    global _moved
    if name == "host":
        figures = scheduler_of(llm).connector.director.figures
        keys = ("host_loaded_bytes_0", "host_loaded_bytes_1")
        _moved = lambda: int(sum(figures.get(key, 0) for key in keys))  # noqa: E731
    elif name == "recompute":
        _moved = lambda: 0  # noqa: E731
    elif name == "example":
        import safetensors.torch

        _moved = _results_counted(
            safetensors.torch, "load_file", lambda found: sum(t.nbytes for t in found.values())
        )


def _results_counted(owner: Any, name: str, size: Callable[[Any], int]) -> Callable[[], int | None]:
    """Wrap a function so that the sizes of its results are added up."""
    plain = getattr(owner, name)
    total = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal total
        result = plain(*args, **kwargs)
        total += size(result)
        return result

    setattr(owner, name, wrapped)
    return lambda: total


def request(llm: Any, name: str, prompt: list[int], evict: bool, cores: list[int]) -> Sample:
    """Run one request, on a device without KV if `evict`, and bring the engine to rest."""
    from vllm import SamplingParams

    pin(cores)
    if evict:
        assert scheduler_of(llm).reset_prefix_cache(), "the device's cache is in use"
    before = _moved()
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=OUTPUT, detokenize=False)
    engine = llm.llm_engine
    begin = time.perf_counter()
    engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    first = 0.0
    while True:
        for output in engine.step():
            first = first or time.perf_counter()
            if output.finished:
                settle(llm)
                after = _moved()
                moved = None if before is None or after is None else after - before
                ids = tuple(output.outputs[0].token_ids)
                return Sample(first - begin, output.num_cached_tokens or 0, moved, ids)


def pin(cores: list[int]) -> None:
    """The thread that computes has the first core, all others of the process the last."""
    for thread in os.listdir("/proc/self/task"):
        mine = int(thread) == threading.get_native_id()
        os.sched_setaffinity(int(thread), cores[:1] if mine else cores[-1:])


@contextmanager
def surroundings(environ: dict[str, str], paths: list[str]) -> Iterator[None]:
    """Environment and `sys.path` of the children that start meanwhile."""
    kept, kept_path = dict(os.environ), list(sys.path)
    if paths:
        joined = os.pathsep.join(paths)
        environ = environ | {"PYTHONPATH": joined, "LD_LIBRARY_PATH": joined}
    os.environ.update(environ)
    sys.path += paths  # a spawned child starts with this list
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
        sys.path[:] = kept_path


def start(
    name: str, model: Path, folder: Path, paths: list[str], args: argparse.Namespace, stack: Any
) -> Engine:
    """Server and engine of a system, which end with the stack."""
    system, port = SYSTEMS[name], free_port()
    folder.mkdir()

    def filled(value: Any) -> Any:
        text = json.dumps(value).replace("{folder}", str(folder)).replace("{port}", str(port))
        return json.loads(text)

    for file, content in system.files.items():
        (folder / file).write_text(json.dumps(filled(content)))
    arguments: dict[str, Any] = {"additional_config": {"mimo": system.mimo}}
    if system.connector:
        arguments["kv_transfer_config"] = {
            "kv_connector": system.connector,
            "kv_role": "kv_both",
            "kv_connector_extra_config": filled(system.extra),
        }
    tokens_of_step = args.cached + args.new + OUTPUT + BLOCK
    with surroundings(filled(system.environ), paths):
        if system.server:
            serve(filled(list(system.server)), paths, folder / "log", port, stack)
        return stack.enter_context(
            Engine(
                model,
                environ={"VLLM_CPU_KVCACHE_SPACE": "4"},
                block_size=BLOCK,
                max_model_len=tokens_of_step,
                max_num_batched_tokens=tokens_of_step,  # ExampleConnector stores one step alone
                max_num_seqs=1,
                num_gpu_blocks_override=2 * (tokens_of_step // BLOCK + 8),
                **arguments,
            )
        )


def serve(command: list[str], paths: list[str], log: Path, port: int, stack: Any) -> None:
    """Start a system's server and wait for its port."""
    files = [file for path in paths if (file := Path(path) / command[0]).is_file()]
    begin = [str(files[0])] if files else [sys.executable, "-m", command[0]]
    with log.open("w") as out:
        process = subprocess.Popen([*begin, *command[1:]], stdout=out, stderr=out)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    end = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                break
        if process.poll() is not None or time.monotonic() > end:
            raise EngineFailure(log.read_text() or f"{command[0]} does not answer")
        time.sleep(0.1)
    os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[-1:])


def summary(samples: list[Sample], expected: list[tuple[int, ...]]) -> dict[str, Any]:
    """Medians of one system."""
    ttfts = sorted(1e3 * s.ttft_s for s in samples)
    return {
        "ttft_ms": round(statistics.median(ttfts), 2),
        "ttft_min_max_ms": [round(ttfts[0], 2), round(ttfts[-1], 2)],
        "cached_tokens": sorted({s.cached for s in samples}),
        "moved_bytes": sorted({s.moved for s in samples if s.moved is not None}) or None,
        "same_output": [s.output for s in samples] == expected,
        "rounds": len(samples),
    }


def last_line(error: BaseException) -> str:
    """What an error says in the end."""
    return str(error).strip().rpartition("\n")[2]


def measure(engines: dict[str, Engine], args: argparse.Namespace) -> dict[str, Any]:
    """All systems in turn."""
    cores = sorted(os.sched_getaffinity(0))
    rng = random.Random(7)
    prefix = tokens(rng, args.cached)
    samples: dict[str, list[Sample]] = defaultdict(list)
    errors: dict[str, str] = {}
    for name, engine in engines.items():
        engine.run(watch, name)
    for number in range(-2, args.rounds):  # the first stores, the second warms up
        prompt = [*prefix, *tokens(rng, args.new)]
        turn = [name for name in engines if name not in errors]
        turn = turn[number % len(turn) :] + turn[: number % len(turn)]
        for name in turn:
            try:
                got = engines[name].run(request, f"r{number}", prompt, True, cores)
                warm = None
                if name == "recompute":
                    other = [*prefix, *tokens(random.Random(number), args.new)]
                    warm = engines[name].run(request, f"w{number}", other, False, cores)
            except EngineFailure as error:
                errors[name] = last_line(error)
                continue
            if number >= 0:
                samples[name].append(got)
                if warm:
                    samples[WARM].append(warm)
    expected = [s.output for s in samples["recompute"]]
    figures = {name: summary(found, expected) for name, found in samples.items()}
    del figures[WARM]["same_output"]  # of other prompts
    return {"systems": figures, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cached", type=int, default=8192)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--peer-path", action="append", default=[], metavar="NAME=DIR")
    args = parser.parse_args()
    paths: dict[str, list[str]] = defaultdict(list)
    for given in args.peer_path:
        name, _, path = given.partition("=")
        paths[name].append(str(Path(path).resolve()))
    errors: dict[str, str] = {}
    engines: dict[str, Engine] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = write_model(Path(folder) / "model")
        for name in dict.fromkeys(["recompute", *args.only]):
            try:
                engines[name] = start(name, model, Path(folder) / name, paths[name], args, stack)
            except EngineFailure as error:
                errors[name] = last_line(error)
        exact = engines["host"].run(exact_bytes, args.cached) if "host" in engines else None
        measured = measure(engines, args)
    figures = measured["systems"]
    result = {
        "benchmark": "tiers",
        "cached": args.cached,
        "new": args.new,
        "systems": figures,
        "errors": errors | measured["errors"],
        "exact_bytes": exact,
        "ttft_over_host": {
            name: round(found["ttft_ms"] / figures["host"]["ttft_ms"], 2)
            for name, found in figures.items()
            if "host" in figures
        },
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
