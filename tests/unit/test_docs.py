"""The parts of the documentation that are written from code."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from vllm_mimo.config import MimoConfig

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tools" / "config_docs.py"
DOCUMENT = ROOT / "docs" / "configuration.md"


def config_docs(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def test_the_table_of_keys_is_up_to_date() -> None:
    result = config_docs("--check")
    assert result.returncode == 0, result.stderr


def test_every_key_has_a_row_with_its_help() -> None:
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition("<!-- keys:")
    table, end, _ = rest.partition("<!-- end of keys -->")
    assert end
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    fields = {field.name: field for field in dataclasses.fields(MimoConfig)}
    assert list(rows) == list(fields)
    for name, field in fields.items():
        assert field.metadata["help"].endswith(".")
        assert field.metadata["help"] in rows[name]


def test_a_stale_table_is_noticed_and_rewritten(tmp_path: Path) -> None:
    original = DOCUMENT.read_text(encoding="utf-8")
    stale = tmp_path / "configuration.md"
    stale.write_text(original.replace("| `fp8_on_cpu` |", "| `fp8` |"), encoding="utf-8")
    assert config_docs("--check", "--file", stale).returncode == 1
    assert config_docs("--file", stale).returncode == 0
    assert stale.read_text(encoding="utf-8") == original
