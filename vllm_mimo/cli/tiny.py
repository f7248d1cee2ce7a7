"""`vllm-mimo tiny`: write a small random checkpoint in one of the family's real layouts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    from vllm_mimo.tiny.shapes import LAYOUTS

    parser = subparsers.add_parser(
        "tiny",
        help="write a tiny random MiMo checkpoint",
        description="Write a hub-style checkpoint of a few MB with random weights: every field, "
        "tensor name, chunk and scale as in the real one. The same seed gives the same bytes.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write")
    parser.add_argument("--layout", choices=LAYOUTS, default="v2.5", help="default: v2.5")
    parser.add_argument("--fp8", action="store_true", help="block FP8 weights, as the real ones")
    parser.add_argument(
        "--text-only", action="store_true", help="leave out the towers that v2.5 has"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--force", action="store_true", help="overwrite a folder that is not empty")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint and say what was written."""
    from vllm_mimo.tiny.checkpoints import write_random

    if args.dir.exists() and (not args.dir.is_dir() or any(args.dir.iterdir())) and not args.force:
        print(f"vllm-mimo tiny: '{args.dir}' exists and is not empty; give --force to overwrite it")
        return 1
    size = write_random(args.dir, args.layout, args.fp8, args.seed, not args.text_only)
    kind = "block FP8" if args.fp8 else "bf16"
    towers = "with" if (args.dir / "audio_tokenizer").is_dir() else "without"
    print(
        f"{args.dir}: {args.layout}, {kind}, {towers} towers, seed {args.seed}, "
        f"{size / 1e6:.1f} MB of weights"
    )
    return 0
