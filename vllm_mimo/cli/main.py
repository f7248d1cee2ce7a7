"""Entry point of the ``vllm-mimo`` command.

A subcommand is a module of this package with two functions: ``add_parser(subparsers)`` declares its
arguments, ``run(args)`` does the work and returns the exit code. Its name in ``COMMANDS`` is all
the registration there is.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import vllm_mimo

COMMANDS = ("doctor", "plan", "replay", "tiers", "tiny")
"""Modules in ``vllm_mimo.cli``, in the order in which help lists them."""


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand; modules must not import vLLM or torch when imported."""
    parser = argparse.ArgumentParser(
        prog="vllm-mimo", description="Tools beside the vLLM plugin for Xiaomi MiMo-V2 models."
    )
    parser.add_argument("--version", action="version", version=vllm_mimo.__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"vllm_mimo.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code (argparse itself exits with 2 on bad arguments)."""
    args = build_parser().parse_args(argv)
    module = importlib.import_module(f"vllm_mimo.cli.{args.command}")
    return int(module.run(args))


if __name__ == "__main__":
    sys.exit(main())
