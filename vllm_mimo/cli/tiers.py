"""``vllm-mimo tiers``: a live table of what the KV tiers of a running server hold and move."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

ROWS = (
    ("device", "full_pool_usage", "swa_pool_usage", "prefix_cached_tokens", None, None),
    (
        "host",
        "host_full_usage",
        "host_swa_usage",
        "host_hit_tokens",
        ("host_loaded_full_bytes", "host_loaded_swa_bytes"),
        ("host_stored_full_bytes", "host_stored_swa_bytes"),
    ),
    ("L3", None, None, None, ("l3_read_bytes",), ("l3_written_bytes",)),
)
"""Tier, figures of both usages, of hits, of bytes that come from it and go to it."""

NOTES = (
    ("backfilled", "host_backfilled_blocks"),
    ("rescued", "host_rescued_blocks"),
    ("dropped", "host_dropped_blocks"),
    ("loaded ahead", "host_blocks_loaded_ahead"),
    ("L3 failed", "l3_failed_blocks"),
    ("L3 timeouts", "l3_timeouts"),
    ("keep-alives", "l3_keep_alives"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "tiers",
        help="show what the KV tiers of a running server do",
        description="Reads a server's /metrics and shows its KV tiers: how full they are, the "
        "tokens they saved, and the bytes that move, in all and per second. Ctrl-C ends it.",
    )
    parser.add_argument("--url", default="http://localhost:8000", help="root address of the server")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two tables")
    parser.add_argument("--once", action="store_true", help="print one table and end")


def run(args: argparse.Namespace) -> int:
    """Print tables until interrupted; 1 where the server does not answer."""
    from vllm_mimo.serving import metrics

    before: Mapping[str, float] = {}
    seen = time.monotonic()
    try:
        while True:
            try:
                values = metrics.read(args.url.rstrip("/"))
            except OSError as error:
                print(f"{args.url} does not answer: {error}", file=sys.stderr)
                return 1
            now = time.monotonic()
            print(table(values, before, now - seen), flush=True)
            if args.once:
                return 0
            before, seen = values, now
            time.sleep(args.interval)
            print()
    except KeyboardInterrupt:
        return 0


def table(values: Mapping[str, float], before: Mapping[str, float], seconds: float) -> str:
    """The table of one moment.

    Args:
        values, before: samples of the server's page now and `seconds` ago, by name; without the
            earlier ones no rates are shown.
    """

    def figure(name: str | None, source: Mapping[str, float] = values) -> float | None:
        if name is None:
            return None
        key = f"vllm_mimo:{name}"
        return source.get(key, source.get(f"{key}_total"))

    def share(name: str | None) -> str:
        value = figure(name)
        return "-" if value is None else f"{100 * value:.1f} %"

    def moved(names: tuple[str, ...] | None) -> str:
        if names is None:
            return "-"
        now = sum(figure(name) or 0.0 for name in names)
        text = f"{now / 1e9:.3f} GB"
        if before and seconds > 0:
            then = sum(figure(name, before) or 0.0 for name in names)
            text += f" ({(now - then) / seconds / 1e6:.1f} MB/s)"
        return text

    lines = [f"{'tier':<8}{'full':>9}{'SWA':>9}{'hit tokens':>14}  {'from it':<26}{'to it':<26}"]
    for tier, full, swa, hits, out, into in ROWS:
        tokens = figure(hits)
        count = "-" if tokens is None else f"{tokens:,.0f}"
        usage = f"{tier:<8}{share(full):>9}{share(swa):>9}"
        lines.append(f"{usage}{count:>14}  {moved(out):<26}{moved(into):<26}")
    load, exposed = figure("tier_load_seconds"), figure("tier_load_exposed_seconds")
    if load:
        lines.append(f"loads took {load:.3f} s; steps waited for {exposed or 0.0:.3f} s of them")
    notes = [f"{text} {figure(name) or 0.0:,.0f}" for text, name in NOTES]
    lines.append("blocks: " + ", ".join(notes))
    return "\n".join(line.rstrip() for line in lines)
