"""`vllm-mimo replay`: play a trace through real KV cache managers and compare them."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm_mimo.replay.names import POLICIES, check_policy, parse_size
from vllm_mimo.replay.policy import PolicyError
from vllm_mimo.traces.form import TraceError, TraceRequest


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="measure prefix-cache hits on a trace",
        description="Play the requests of a trace through the real KV cache managers of vLLM and "
        "of this plugin, on a virtual clock and without a model: hit rate, recomputed tokens, "
        "evictions, cost of look-ups. Traces: weka_agentic, mooncake.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="file of the trace")
    parser.add_argument(
        "--budget",
        action="append",
        type=_size,
        metavar="SIZE",
        help="bytes of KV cache of one rank, e.g. 20GB or 18.5GiB; may be repeated (default: 20GB)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        type=_policy,
        metavar="NAME",
        help=f"may be repeated to compare (default: vllm and mimo). Valid: {POLICIES}",
    )
    load = parser.add_argument_group("load")
    load.add_argument("--sessions", type=_count, help="play this many sessions (default: all)")
    load.add_argument("--users", type=_count, default=32, help="sessions at once (default: 32)")
    load.add_argument("--requests", type=_count, help="stop after this many requests")
    load.add_argument(
        "--order",
        choices=("shuffled", "file"),
        default="shuffled",
        help="order of the sessions (default: shuffled, always the same way)",
    )
    load.add_argument(
        "--instant",
        action="store_true",
        help="serve requests in no time, so that they never hold blocks beside each other",
    )
    rank = parser.add_argument_group("rank")
    rank.add_argument(
        "--model",
        default="MiMo-V2.5",
        help="bundled model or folder with a config.json (default: MiMo-V2.5)",
    )
    rank.add_argument("--tp", type=_count, default=8, help="tensor-parallel ranks (default: 8)")
    rank.add_argument("--block-size", type=_count, default=64, help="tokens (default: 64)")
    rank.add_argument(
        "--chunk", type=_count, default=8192, help="most tokens of a prefill step (default: 8192)"
    )
    rank.add_argument(
        "--batches-in-flight",
        type=_count,
        default=2,
        help="steps scheduled ahead (default: 2, as with vLLM's async scheduling)",
    )
    _add_tiers(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (.png, .svg)")
    parser.set_defaults(run=run)


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    tiers = parser.add_argument_group(
        "tiers", "below the pools of mimo policies, which may say otherwise (docs/replay.md)"
    )
    size: dict[str, Any] = {"type": _gigabytes, "default": 0.0, "metavar": "GB"}
    tiers.add_argument("--host-gb", **size, help="host memory of each rank and engine")
    tiers.add_argument("--l3-gb", **size, help="a rank's share of the L3 that all engines share")
    tiers.add_argument(
        "--no-backfill",
        action="store_true",
        help="never store what host memory lost while the device kept it",
    )
    tiers.add_argument(
        "--no-keep-alive",
        action="store_true",
        help="do not tell L3 what is taken from the tiers above it",
    )
    tiers.add_argument("--engines", type=_count, default=1, help="behind one router (default: 1)")


def _tiers(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the mimo policies that do not say otherwise."""
    chosen = {"host_gb": args.host_gb, "l3_gb": args.l3_gb, "engines": args.engines}
    if args.no_keep_alive:
        chosen["keep_alive"] = "off"
    return chosen | ({"tier_backfill": 0} if args.no_backfill else {})


def run(args: argparse.Namespace) -> int:
    """Replay and print; returns 1 where that cannot be done."""
    from vllm_mimo.checkpoints.geometry import GeometryError
    from vllm_mimo.replay.plot import PlotError

    try:
        return _run(args)
    except (TraceError, PolicyError, GeometryError, PlotError) as error:
        print(f"vllm-mimo replay: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    from vllm_mimo.replay.deployment import Deployment, load_geometry
    from vllm_mimo.replay.hashes import check_block_sizes, reusable_tokens
    from vllm_mimo.replay.plot import check_plot, write_plot
    from vllm_mimo.replay.schedule import Load, schedule
    from vllm_mimo.traces import read_trace

    if args.plot is not None:
        check_plot(args.plot)
    geometry = load_geometry(args.model, args.tp)
    trace = read_trace(args.trace)
    load = Load(args.users, args.sessions, 0 if args.order == "shuffled" else None)
    requests = schedule(trace, load)[: args.requests]
    check_block_sizes(requests[0].block_size, args.block_size)
    deployment = Deployment(
        geometry,
        args.tp,
        max(request.input_tokens + request.output_tokens for request in requests),
        args.block_size,
        args.chunk,
        args.batches_in_flight,
    )
    results = _compare(args, requests, deployment)
    summary = {
        "trace": str(args.trace),
        "format": trace.format,
        "requests": len(requests),
        "prompt_tokens": sum(request.input_tokens for request in requests),
        "reusable_tokens": reusable_tokens(requests, args.block_size),
        "virtual_seconds": requests[-1].arrival_s,
        "model": args.model,
        "tensor_parallel": args.tp,
        "block_size": args.block_size,
        "instant": args.instant,
    }
    if args.json:
        print(json.dumps(summary | {"results": [result.as_dict() for result in results]}, indent=2))
    else:
        from vllm_mimo.replay.report import format_table

        print(
            f"{args.trace.name}: {len(requests):,} requests, {summary['prompt_tokens']:,} prompt "
            f"tokens over {requests[-1].arrival_s:,.0f} s; one rank of {args.model} at "
            f"TP{args.tp}, blocks of {args.block_size}\n"
            f"Reusable by a cache without a limit: "
            f"{summary['reusable_tokens'] / summary['prompt_tokens']:.1%}\n"
        )
        print(format_table(results))
    if args.plot is not None:
        write_plot(results, args.plot, f"{args.trace.name}, {args.model} TP{args.tp}, one rank")
    return 0


def _compare(args: argparse.Namespace, requests: Sequence[TraceRequest], deployment: Any) -> Any:
    budgets = list(dict.fromkeys(args.budget or [parse_size("20GB")]))
    names = list(dict.fromkeys(args.policy or ["vllm", "mimo"]))
    with _quiet_vllm():
        from vllm_mimo.replay.compare import compare
        from vllm_mimo.replay.engine import Service
        from vllm_mimo.replay.names import make_policy

        policies = [make_policy(name, deployment, _tiers(args)) for name in names]
        service = Service(hold=not args.instant)
        total = len(requests) * len(policies) * len(budgets)
        with _progress(total, quiet=args.json) as progress:
            return compare(requests, policies, budgets, service, progress)


@contextlib.contextmanager
def _quiet_vllm() -> Iterator[None]:
    """Keep vLLM from logging each plan, and all of its output away from ours."""
    logger = logging.getLogger("vllm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Any]:
    from tqdm import tqdm

    disable = quiet or not sys.stderr.isatty()
    with tqdm(total=total, unit=" requests", disable=disable) as bar:
        yield bar.update


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of GB")
    return size


def _policy(text: str) -> str:
    try:
        return check_policy(text)
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)
