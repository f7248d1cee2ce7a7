"""``vllm-mimo doctor``: what this machine has, what it lacks, and how to get it."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import textwrap
from typing import Any

from vllm_mimo.doctor import Finding, Report, Status, examine

LINE_LENGTH = 100


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="check software, configuration and machine",
        description="Check versions, the plugin, its configuration, the uses it makes of vLLM, and "
        "the machine. Exit code 0 when MiMo models can run here, 1 when something is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument(
        "--additional-config",
        type=_json_object,
        metavar="JSON",
        help="what you would pass to vLLM under the same name",
    )


def run(args: argparse.Namespace) -> int:
    """Examine and print; returns 0 when runnable, else 1."""
    # vLLM logs to standard output while it is imported, which would spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        report = examine(args.additional_config)
    print(json.dumps(report.as_dict(), indent=2) if args.json else format_report(report))
    return 0 if report.runnable else 1


def format_report(report: Report) -> str:
    """The report for a person: one line for each finding, its advice below it."""
    lines: list[str] = []
    width = max((len(finding.name) for finding in report.findings), default=0)
    section = ""
    for finding in report.findings:
        if finding.section != section:
            section = finding.section
            lines += ["", section]
        lines += _format_finding(finding, width)
    verdict = "ready to run" if report.runnable else f"missing: {', '.join(report.missing)}"
    return "\n".join([*lines[1:], "", verdict])


def _format_finding(finding: Finding, width: int) -> list[str]:
    label = finding.status.upper() if finding.status is Status.MISSING else finding.status.value
    indent = f"  {'':7}  {'':{width}}  "
    first, *rest = _format_value(finding.value)
    lines = [f"  {label:7}  {finding.name:{width}}  {first}".rstrip()]
    lines += [indent + line for line in rest]
    wrapped = textwrap.wrap(
        finding.advice,
        max(LINE_LENGTH, len(indent) + 40),
        initial_indent=f"{indent}-> ",
        subsequent_indent=f"{indent}   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines + wrapped


def _format_value(value: Any) -> list[str]:
    """A value of JSON's types as lines: mappings and long lists take one line for each item."""
    if value is None:
        return ["-"]
    if isinstance(value, dict):
        if value.keys() == {"value", "source"}:
            return [f"{value['value']} ({value['source']})"]
        return [f"{key}: {' '.join(_format_value(item))}" for key, item in value.items()] or ["-"]
    if isinstance(value, list):
        texts = [str(item) for item in value]
        return texts if sum(map(len, texts)) > 60 else [" ".join(texts) or "-"]
    return [str(value)]


def _json_object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return parsed
