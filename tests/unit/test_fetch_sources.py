"""tools/fetch_vllm_sources.py, with the real pip and a made-up release on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "fetch_vllm_sources.py"
VERSION = "99.1.0"
INFO = f"vllm-{VERSION}.dist-info"
FILES = {
    "vllm/__init__.py": f'__version__ = "{VERSION}"\n',
    "vllm/deep/module.py": "x = 1\n",
    "vllm/_C.abi3.so": "not for us",
    "vllm/kernel.cu": "not for us",
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
    "Tag: cp38-abi3-manylinux_2_28_x86_64\n",
    f"{INFO}/RECORD": "",
}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / f"vllm-{VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**FILES, "../outside.py": "escaped = True\n"}.items():
            archive.writestr(name, text)
    return folder


def fetch(version: str, dest: Path, index: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    return subprocess.run(
        [sys.executable, SCRIPT, version, dest], env=environ, capture_output=True, text=True
    )


def files_under(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_python_files_and_metadata_are_unpacked_and_the_wheel_is_not_kept(
    tmp_path: Path, index: Path
) -> None:
    dest = tmp_path / "cache" / "vllm"
    result = fetch(VERSION, dest, index)
    assert result.returncode == 0, result.stderr
    assert files_under(dest) == {name for name in FILES if not name.endswith((".so", ".cu"))}
    assert (dest / "vllm/deep/module.py").read_text() == "x = 1\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["vllm"]


def test_a_complete_folder_is_left_alone_and_a_cut_off_one_is_made_anew(
    tmp_path: Path, index: Path
) -> None:
    dest = tmp_path / "vllm"
    fetch(VERSION, dest, index)
    marker = dest / "marker"
    marker.touch()
    # Without an index, so that a download would fail.
    again = fetch(VERSION, dest, tmp_path)
    assert again.returncode == 0, again.stderr
    assert "already in" in again.stdout
    assert marker.exists()

    (dest / INFO / "METADATA").unlink()
    assert fetch(VERSION, dest, index).returncode == 0
    assert (dest / INFO / "METADATA").exists()
    assert not marker.exists()


def test_a_release_that_cannot_be_had_is_an_error_that_leaves_nothing(
    tmp_path: Path, index: Path
) -> None:
    dest = tmp_path / "cache" / "vllm"
    result = fetch("99.9.9", dest, index)
    assert result.returncode == 1
    assert "could not download the wheel of vllm 99.9.9" in result.stderr
    assert "No matching distribution" in result.stderr
    assert list((tmp_path / "cache").iterdir()) == []
