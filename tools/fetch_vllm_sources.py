"""Fetch the Python sources of one vLLM release, without installing it.

    python tools/fetch_vllm_sources.py 0.33.0 .cache/vllm-0.33.0

The contract test holds every vLLM name that the plugin relies on against releases that this machine
cannot install (0.33 has no CPU build). pip downloads the wheel from the index it is set up for, the
``*.py`` files and the ``dist-info`` folder are unpacked into DEST, and the wheel is deleted again:
a 340 MB download leaves 57 MB. A DEST that is complete is left alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

# The wheel is cp38-abi3: one file for every Python. Its sources are the same on every platform, so
# the tags of one are asked for, whatever this machine is.
PLATFORM_TAGS = ("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_31_x86_64")
PYTHON_TAGS = ("--python-version=3.12", "--implementation=cp", "--abi=abi3")


class FetchError(RuntimeError):
    """The release could not be downloaded or is not what was asked for."""


def is_complete(version: str, dest: Path) -> bool:
    """Whether ``dest`` already holds the sources of ``version``."""
    return (dest / f"vllm-{version}.dist-info" / "METADATA").is_file() and (
        dest / "vllm" / "__init__.py"
    ).is_file()


def download_wheel(version: str, folder: Path) -> Path:
    """Have pip put the wheel of ``version`` into ``folder``; raises FetchError with pip's words."""
    command = [sys.executable, "-m", "pip", "download", f"vllm=={version}", "--no-deps"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--progress-bar=off", "--quiet"]
    command += [*PLATFORM_TAGS, *PYTHON_TAGS, "--disable-pip-version-check"]
    command += ["--dest", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = sorted(folder.glob("vllm-*.whl"))
    if result.returncode != 0 or not wheels:
        raise FetchError(
            f"pip could not download the wheel of vllm {version} "
            f"(exit code {result.returncode}):\n{result.stdout}{result.stderr}".rstrip()
        )
    return wheels[0]


def extract_sources(wheel: Path, dest: Path) -> int:
    """Unpack ``*.py`` and ``*.dist-info/*`` of ``wheel`` into ``dest``; returns the file count."""
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = PurePosixPath(info.filename)
            if info.is_dir() or path.is_absolute() or ".." in path.parts:
                continue
            if path.suffix != ".py" and not path.parts[0].endswith(".dist-info"):
                continue
            archive.extract(info, dest)
            count += 1
    return count


def fetch(version: str, dest: Path) -> int:
    """Make ``dest`` hold the sources of ``version``.

    Returns how many files were unpacked, 0 when they were there already. Raises FetchError when
    the wheel cannot be had or holds another release.
    """
    if is_complete(version, dest):
        return 0
    dest.parent.mkdir(parents=True, exist_ok=True)
    # Unpacked beside DEST and moved in one step: a run that is cut off leaves nothing half-made.
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".fetch-") as name:
        unpacked = Path(name) / "sources"
        count = extract_sources(download_wheel(version, Path(name)), unpacked)
        if not is_complete(version, unpacked):
            raise FetchError(f"the wheel downloaded for vllm {version} does not hold that release")
        if dest.exists():
            shutil.rmtree(dest)
        os.replace(unpacked, dest)
    return count


def main(argv: list[str] | None = None) -> int:
    """Command line: VERSION DEST. Exit code 1 when the release cannot be had."""
    parser = argparse.ArgumentParser(description="Fetch the Python sources of one vLLM release.")
    parser.add_argument("version", help="for example 0.33.0")
    parser.add_argument("dest", type=Path, help="for example .cache/vllm-0.33.0")
    args = parser.parse_args(argv)
    try:
        count = fetch(args.version, args.dest)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"vllm {args.version}: " + (f"{count} files in" if count else "already in"), args.dest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
