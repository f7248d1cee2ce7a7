"""Write the table of keys in ``docs/configuration.md`` from the fields of ``MimoConfig``.

python tools/config_docs.py            rewrite the table
python tools/config_docs.py --check    exit with 1 if the file is out of date
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, from a checkout that may not be installed

from vllm_mimo.config import MimoConfig  # noqa: E402
from vllm_mimo.value_types import describe_type  # noqa: E402

BEGIN = "<!-- keys: written by tools/config_docs.py -->\n"
END = "<!-- end of keys -->\n"


def markdown_table(config: type = MimoConfig) -> str:
    """A Markdown table with a row for each field: key, values, default, meaning."""
    hints = typing.get_type_hints(config)
    rows = ["| key | values | default | what it does |", "|---|---|---|---|"]
    for field in dataclasses.fields(config):
        values = describe_type(hints[field.name]).replace("|", "\\|")
        default = json.dumps(field.default)
        help_text = field.metadata["help"]
        rows.append(f"| `{field.name}` | {values} | `{default}` | {help_text} |")
    return "\n".join(rows) + "\n"


def with_table(document: str, table: str) -> str:
    """The document with the text between the two marks replaced; raises ValueError without them."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Write the table of keys in the docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if out of date")
    parser.add_argument("--file", type=Path, default=ROOT / "docs" / "configuration.md")
    args = parser.parse_args(argv)
    old = args.file.read_text(encoding="utf-8")
    new = with_table(old, markdown_table())
    if old == new:
        return 0
    if args.check:
        print(f"{args.file} is out of date: run python tools/config_docs.py", file=sys.stderr)
        return 1
    args.file.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
