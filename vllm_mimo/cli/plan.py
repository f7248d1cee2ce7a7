"""`vllm-mimo plan`: weights, KV pools and concurrent requests of a model on given GPUs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ERROR = 2
"""Exit code for everything that cannot be planned."""


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="plan memory and KV pools on given GPUs",
        description="Say how a MiMo-V2 model fits on GPUs: weights, KV pools, concurrent requests, "
        "beside vLLM's own planning. Needs no GPU. docs/planner.md explains every line.",
    )
    add = parser.add_argument
    add("--model", required=True, help="folder with a config.json, or a bundled real model's name")
    add("--gpu", help="A100, H100, H20, H20-141GB, H200 or B200")
    add("--gpu-memory", metavar="SIZE", help="memory of one GPU, such as 141GB or 80GiB")
    add("--count", type=int, default=8, help="GPUs (default: 8)")
    add("--tp", type=int, help="tensor-parallel ranks of an attention replica (default: up to 8)")
    add("--ep", type=int, help="ranks that the experts are spread over (default: all of a stage)")
    add("--pp", type=int, default=1, help="pipeline stages (default: 1)")
    add(
        "--context-mix",
        metavar="LENGTH:SHARE,...",
        help="contexts of running requests (default: 4k:0.5,32k:0.3,128k:0.2)",
    )
    add("--max-model-len", metavar="N", help="default: the config's max_position_embeddings")
    add("--max-num-batched-tokens", type=int, metavar="N", help="default: vLLM's on this GPU")
    add("--max-num-seqs", type=int, metavar="N", help="default: vLLM's on this GPU")
    add("--kv-dtype", default="bf16", help="bf16 or fp8 (default: bf16)")
    add("--mtp", type=int, default=0, help="MTP layers in use, 0 to 3 (default: 0)")
    add("--block-size", type=int, metavar="N", help="tokens per KV block (default: 64)")
    add("--gpu-memory-utilization", type=float, default=0.9, metavar="F", help="default: 0.9")
    add("--kv-bytes", metavar="SIZE", help="bytes for KV on each GPU, instead of what is left")
    add(
        "--swa-pool-fraction",
        type=float,
        metavar="F",
        help="SWA pool's share of the KV bytes, as the key swa_pool_fraction (default: automatic)",
    )
    add("--no-vllm", action="store_true", help="leave out vLLM's own planning (saves its import)")
    add("--json", action="store_true", help="print every number as one JSON object")
    add("--plot", type=Path, metavar="FILE.png", help="draw concurrent requests by context")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print; returns 0, or 2 after one line on what cannot be planned."""
    from vllm_mimo.planner.inputs import PlanError
    from vllm_mimo.planner.pools import PoolSizeError
    from vllm_mimo.planner.report import format_report

    try:
        plan = make_plan(args)
    except (PlanError, PoolSizeError) as error:
        print(f"vllm-mimo plan: {error}", file=sys.stderr)
        return ERROR
    print(json.dumps(plan, indent=2) if args.json else format_report(plan))
    return 0


def make_plan(args: argparse.Namespace) -> dict[str, Any]:
    """The plan as `planner.summary` describes it. Raises PlanError and PoolSizeError."""
    from vllm_mimo.planner import comparison, gpus, inputs, models, placement, plan, plot
    from vllm_mimo.planner.serving import BLOCK_SIZE, DEFAULT_MIX, Serving
    from vllm_mimo.planner.summary import summarize

    memory = inputs.parse_bytes(args.gpu_memory) if args.gpu_memory else None
    gpu = gpus.find_gpu(args.gpu, memory)
    model = models.find_model(args.model)
    placed = placement.place(model.geometry, args.count, args.tp, args.ep, args.pp)
    if not 0 <= args.mtp <= model.geometry.num_mtp_layers:
        raise inputs.PlanError(
            f"--mtp must be 0 to {model.geometry.num_mtp_layers}, got {args.mtp}"
        )
    limit = model.max_position
    length = inputs.parse_tokens(args.max_model_len) if args.max_model_len else limit
    if length is None:
        raise inputs.PlanError("--max-model-len is needed: the config has no limit of its own")
    if limit is not None and length > limit:
        raise inputs.PlanError(f"--max-model-len {length:,} exceeds the model's {limit:,}")
    serving = Serving(
        length,
        gpu.batched_tokens if args.max_num_batched_tokens is None else args.max_num_batched_tokens,
        gpu.num_seqs if args.max_num_seqs is None else args.max_num_seqs,
        args.kv_dtype,
        args.mtp,
        BLOCK_SIZE if args.block_size is None else args.block_size,
        placed.pp,
        args.swa_pool_fraction,
    )
    given = inputs.parse_mix(args.context_mix) if args.context_mix else None
    mix = given or inputs.clip_mix(DEFAULT_MIX, length)
    for part in mix:
        if part.tokens > length:
            raise inputs.PlanError(
                f"--context-mix has {part.tokens:,} tokens, max_model_len is {length:,}"
            )
    kv_bytes = inputs.parse_bytes(args.kv_bytes) if args.kv_bytes else None
    utilization = args.gpu_memory_utilization
    sizing = plan.size(model, gpu, placed, serving, utilization, kv_bytes)
    upstream = _upstream(args.no_vllm, model, sizing)
    if args.plot is not None:
        pool = None if isinstance(upstream, str) else upstream
        title = f"{model.name}, {gpu.name} x {placed.count}: TP {placed.tp}, EP {placed.ep}"
        points = comparison.curve(sizing.pools, pool)
        plot.draw(points, serving.max_num_seqs, title, args.plot)
    return summarize(model, gpu, sizing, upstream, mix, utilization)


def _upstream(skip: bool, model: Any, sizing: Any) -> Any:
    """vLLM's pool, or why there is none."""
    from vllm_mimo.planner.upstream import UpstreamUnavailable, plan_upstream

    if skip:
        return "left out by --no-vllm"
    pools, memory = sizing.pools, sizing.memory
    try:
        return plan_upstream(model.geometry, sizing.placement.tp, pools.serving, memory.budgets)
    except UpstreamUnavailable as error:
        return str(error)
