"""The contract with vLLM: it holds for both releases, and both checkers notice when it does not."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from vllm_mimo.contract import ENTRIES, Entry, check_installed, check_sources

ROOT = Path(__file__).resolve().parent.parent.parent
Check = Callable[[Iterable[Entry]], list[str]]


def test_holds_for_the_installed_vllm() -> None:
    assert check_installed() == []


def test_holds_for_the_sources_of_the_installed_vllm(installed_root: Path) -> None:
    """The reader of sources agrees with the import on the release that both can see."""
    assert check_sources(installed_root) == []


def test_holds_for_the_next_vllm(next_vllm_sources: Path) -> None:
    assert check_sources(next_vllm_sources) == []


def test_entries_name_modules_of_ours_and_a_reason() -> None:
    for entry in ENTRIES:
        assert importlib.util.find_spec(entry.used_by), entry.used_by
        assert entry.why
    names = [(entry.modules, entry.qualname) for entry in ENTRIES]
    assert len(set(names)) == len(names)


def test_everything_that_we_import_of_vllm_is_in_the_table() -> None:
    known = {(module, e.qualname.split(".")[0]) for e in ENTRIES for module in e.modules}
    unknown = []
    for path in (ROOT / "vllm_mimo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found = [(alias.name, "(import it by name)") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found = [(node.module or "", alias.name) for alias in node.names]
            else:
                continue
            unknown += [
                f"{path.relative_to(ROOT)}: {module}:{name}"
                for module, name in found
                if module.split(".")[0] == "vllm" and (module, name) not in known
            ]
    assert unknown == [], "add entries to vllm_mimo/contract/table"


# Changes to vLLM that must be noticed: file, pattern, replacement, and what must be reported.
BREAKS = [
    pytest.param(
        "model_executor/layers/attention/attention.py",
        r"\bhead_size_v: int",
        "value_head_size: int",
        "vllm.model_executor.layers.attention:Attention.__init__: parameter 'head_size_v'",
        id="parameter renamed, behind a re-export",
    ),
    pytest.param(
        "model_executor/models/mimo_v2_mtp.py",
        r"class MiMoV2MTPLayer\b",
        "class MiMoV2DraftLayer",
        "vllm.model_executor.models.mimo_v2_mtp:MiMoV2MTPLayer.__init__: 'MiMoV2MTPLayer' does not",
        id="class renamed",
    ),
    pytest.param(
        "engine/arg_utils.py",
        r"def from_cli_args\(cls, args: argparse.Namespace\)",
        "def from_cli_args(cls, args: argparse.Namespace, usage: str = '')",
        "EngineArgs.from_cli_args: parameter 'usage' is new, and vLLM passes it to our override",
        id="parameter added to a method that we override",
    ),
    pytest.param(
        "model_executor/models/registry.py",
        r"model_cls: type\[nn.Module\] \| str,",
        "model_cls: type[nn.Module] | str, owner: str,",
        "ModelRegistry.register_model: parameter 'owner' is required, and we do not pass it",
        id="required parameter added to a function that we call",
    ),
    pytest.param(
        "v1/attention/backends/registry.py",
        r"    TRITON_ATTN_DIFFKV = ",
        "    TRITON_ATTN_DIFF_KV = ",
        "AttentionBackendEnum: attribute 'TRITON_ATTN_DIFFKV' does not exist",
        id="enum member renamed",
    ),
    pytest.param(
        "config/vllm.py",
        r"    additional_config: dict",
        "    extra_config: dict",
        "vllm.config:VllmConfig: attribute 'additional_config' does not exist",
        id="field renamed",
    ),
    pytest.param(
        "reasoning/__init__.py",
        r'"mimo": \(',
        '"mimo_v2": (',
        "vllm.reasoning:_REASONING_PARSERS_TO_REGISTER: key 'mimo' does not exist",
        id="registration renamed",
    ),
    pytest.param(
        "transformers_utils/config.py",
        r"\b_CONFIG_REGISTRY\b",
        "CONFIG_REGISTRY",
        "vllm.transformers_utils.config:_CONFIG_REGISTRY: '_CONFIG_REGISTRY' does not exist",
        id="value renamed",
    ),
    pytest.param(
        "platforms/interface.py",
        r"def is_cpu\(",
        "def is_host(",
        "vllm.platforms:current_platform: attribute 'is_cpu' does not exist",
        id="method renamed in the class of a value",
    ),
]


@pytest.mark.parametrize(("file", "pattern", "replacement", "reported"), BREAKS)
def test_a_change_in_vllm_is_reported_by_name(
    copied_root: Path, file: str, pattern: str, replacement: str, reported: str
) -> None:
    path = copied_root / "vllm" / file
    original = path.read_text(encoding="utf-8")
    changed, count = re.subn(pattern, replacement, original)
    assert count, "the pattern must match, or nothing was broken"
    path.write_text(changed, encoding="utf-8")
    try:
        problems = check_sources(copied_root)
    finally:
        path.write_text(original, encoding="utf-8")
    assert [problem for problem in problems if reported in problem], problems
    # Each problem says which module of ours breaks and why; nothing else is reported.
    assert all("needed by vllm_mimo." in problem for problem in problems)
    assert len(problems) <= 3


def test_a_module_that_is_gone_is_reported_with_every_place_it_might_be(copied_root: Path) -> None:
    for path in (copied_root / "vllm" / "entrypoints").rglob("cli_args.py"):
        path.unlink()
    problems = check_sources(copied_root)
    assert len(problems) == 1
    assert "no such module" in problems[0]
    assert "vllm.entrypoints.launchers.cli_args" in problems[0]
    assert "vllm.entrypoints.common.cli_args" in problems[0]


def test_a_folder_without_vllm_is_no_broken_contract(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no package vllm"):
        check_sources(tmp_path)


# A small library with everything the checkers must understand; both read it.
LIBRARY = {
    "__init__.py": "from .moved import Thing as Renamed\nfrom .stars import *\nfrom . import deep",
    "moved.py": """
import collections
class Base:
    inherited: int
    def __init__(self, a, *args, b=1, **rest): self.made = a
    def method(self, x, y=2): pass
class Thing(Base):
    if True:
        flag = True
    @classmethod
    def build(cls, z): pass
thing = Thing(1)
try:
    table = dict(one=1, **{"two": 2})
except ImportError:
    table = {}
""",
    "stars.py": """
from typing import overload
import typing
@overload
def starred(o): ...
@typing.overload
def starred(o, p): ...
def starred(p, *, q): pass
""",
    "deep/__init__.py": """
from typing import Generic, TypeVar
from .. import moved
T = TypeVar("T")
class Box(moved.Base, Generic[T]): pass
class Child(Box[int]): pass
TABLE: dict[str, int] = {'three': 3, **{'four': 4}}
CALLED = dict({'five': 5}, six=6)
""",
    "broken.py": "raise RuntimeError('no driver')",
}


@pytest.fixture(params=["installed", "sources"])
def check(request, tmp_path: Path, monkeypatch) -> Iterable[Check]:
    for name, text in LIBRARY.items():
        path = tmp_path / "contract_fake" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if request.param == "sources":
        yield lambda entries: check_sources(tmp_path, entries)
        return
    monkeypatch.syspath_prepend(tmp_path)
    yield check_installed
    for name in [name for name in sys.modules if name.startswith("contract_fake")]:
        del sys.modules[name]


def entry(qualname: str, module: str = "contract_fake", **fields) -> Entry:
    return Entry((module,), qualname, used_by="us", why="a test", **fields)


HOLDS = [
    entry("Renamed"),
    entry("Renamed.__init__", parameters=("a", "b")),
    entry("Renamed.method", parameters=("x",)),
    entry("Renamed.method", parameters=("x", "y"), overrides=True),
    entry("Renamed.build", parameters=("z",)),
    entry("Renamed", attributes=("flag", "inherited", "made", "method")),
    entry("starred", parameters=("p", "q")),
    entry("thing.method", module="contract_fake.moved", parameters=("x",)),
    entry("thing", module="contract_fake.moved", attributes=("made", "flag")),
    entry("table", module="contract_fake.moved", keys=("one", "two")),
    entry("deep.TABLE", keys=("three", "four")),
    entry("CALLED", module="contract_fake.deep", keys=("five", "six")),
    entry("deep.Child.method", parameters=("x",)),
    entry("deep.Child", attributes=("made", "inherited")),
    Entry(("contract_fake.gone", "contract_fake.stars"), "starred", "us", "moved"),
]
FAILS = [
    (entry("Missing"), "contract_fake:Missing: 'Missing' does not exist (needed by us: a test)"),
    (entry("Renamed.gone", parameters=("a",)), "'gone' does not exist"),
    (entry("Renamed.__init__", parameters=("a", "rest")), "parameter 'rest' does not exist"),
    (entry("Renamed.method", parameters=("y",)), "parameter 'x' is required"),
    (entry("Renamed.method", parameters=("x",), overrides=True), "parameter 'y' is new"),
    (entry("Renamed.method", overrides=True, parameters=("x", "y", "w")), "'w' does not exist"),
    (entry("Renamed", attributes=("absent",)), "attribute 'absent' does not exist"),
    (entry("thing", module="contract_fake.moved", attributes=("absent",)), "'absent' does not"),
    (entry("table", module="contract_fake.moved", keys=("three",)), "key 'three' does not exist"),
    (entry("table", module="contract_fake.moved", parameters=("a",)), "is not a function"),
    (entry("deep.absent"), "'absent' does not exist"),
    (entry("table.absent", module="contract_fake.moved"), "'absent' does not exist"),
    (entry("CALLED", module="contract_fake.deep", keys=("three",)), "key 'three' does not exist"),
    (entry("deep.Child", attributes=("absent",)), "attribute 'absent' does not exist"),
    (entry("x", module="contract_fake.gone"), "contract_fake.gone:x: no such module"),
]


@pytest.mark.parametrize("held", HOLDS, ids=lambda e: e.qualname)
def test_both_checkers_accept_what_is_there(check: Check, held: Entry) -> None:
    assert check([held]) == []


@pytest.mark.parametrize(("broken", "reported"), FAILS, ids=lambda value: str(value)[-40:])
def test_both_checkers_report_what_is_not(check: Check, broken: Entry, reported: str) -> None:
    problems = check([broken])
    assert len(problems) == 1
    assert reported in problems[0]


def test_a_module_that_does_not_import_is_reported(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "contract_broken.py").write_text(LIBRARY["broken.py"])
    monkeypatch.syspath_prepend(tmp_path)
    problems = check_installed([entry("x", module="contract_broken")])
    assert problems == [
        "contract_broken:x: import failed: RuntimeError: no driver (needed by us: a test)"
    ]


def test_a_package_that_is_not_installed_is_reported() -> None:
    problems = check_installed([entry("x", module="contract_absent.deep.module")])
    assert problems == ["contract_absent.deep.module:x: no such module (needed by us: a test)"]


@pytest.fixture(scope="module")
def installed_root() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@pytest.fixture(scope="module")
def pristine_copy(installed_root: Path, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sources")

    def only_python(folder: str, names: list[str]) -> set[str]:
        kept = {n for n in names if n.endswith(".py") or (Path(folder) / n).is_dir()}
        return set(names) - (kept - {"__pycache__"})

    shutil.copytree(installed_root / "vllm", root / "vllm", ignore=only_python)
    return root


@pytest.fixture
def copied_root(pristine_copy: Path, installed_root: Path) -> Iterable[Path]:
    """A copy of the installed sources that a test may change; removed files come back."""
    yield pristine_copy
    for path in (installed_root / "vllm" / "entrypoints").rglob("cli_args.py"):
        shutil.copy(path, pristine_copy / path.relative_to(installed_root))
