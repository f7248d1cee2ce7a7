"""Rules that hold for every file of the repository."""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Assembled, so that this file does not break the rule that it checks.
REGISTRY_HOSTS = ("pypi" + ".org", "python" + "hosted", "npm" + "js", "deb" + "ian.org")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|tm" + r"p/w)/")
LOCK_FILES = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "package-lock.json"}
MADE = {".git", ".venv", ".cache", "__pycache__", "build", "dist", "htmlcov", ".hypothesis"}
MADE_ENDINGS = (".egg-info", "_cache")
MAX_LINES = 300


@cache
def files() -> tuple[Path, ...]:
    """Files that belong to the repository, also where there is no git."""
    found = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name for name in subfolders if name not in MADE and not name.endswith(MADE_ENDINGS)
        ]
        found += [Path(folder) / name for name in names if not name.startswith(".coverage")]
    return tuple(found)


def texts() -> list[tuple[str, str]]:
    found = []
    for path in files():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # an image or another asset
    return found


def test_modules_stay_short() -> None:
    modules = [(name, text) for name, text in texts() if re.match(r"vllm_mimo/.*\.py$", name)]
    assert len(modules) > 10
    too_long = {n: text.count("\n") for n, text in modules if text.count("\n") > MAX_LINES}
    assert too_long == {}


def test_nothing_names_a_registry_host_or_a_path_of_one_machine() -> None:
    bad = [
        f"{name}: {found}"
        for name, text in texts()
        for found in [*(h for h in REGISTRY_HOSTS if h in text), *MACHINE_PATH.findall(text)]
    ]
    assert bad == []


def test_there_are_no_lock_files() -> None:
    assert [path for path in files() if path.name in LOCK_FILES] == []


def test_every_direct_dependency_of_the_tests_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cpu"], *extras["dev"]]
    names = {re.split(r"[\[<>=!~ ]", item, maxsplit=1)[0] for item in wanted} | {"uv"}
    lines = (ROOT / "constraints/cpu.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert names == pinned
