"""Hold the installed vLLM against the contract, by importing it.

Imports torch and the model code, so it takes seconds. It sees what runs: decorators, and patches if
the plugin is active in this process (``functools.wraps`` keeps signatures readable through them).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from vllm_mimo.contract.entry import Entry, Parameter
from vllm_mimo.contract.sources import assigned_on_self
from vllm_mimo.contract.table import ENTRIES

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_installed(entries: Iterable[Entry] = ENTRIES) -> list[str]:
    """Problems of the vLLM of this Python, one sentence each; empty when the contract holds."""
    problems = []
    for entry in entries:
        module = next((name for name in entry.modules if _exists(name)), None)
        if module is None:
            problems.append(entry.problem("no such module"))
            continue
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:  # whatever a module may do while it is imported
            problems.append(
                entry.problem(f"import failed: {type(error).__name__}: {error}", module)
            )
            continue
        problems += [entry.problem(what, module) for what in _check_object(entry, found)]
    return problems


def _exists(module: str) -> bool:
    """Whether a module can be found; parents are imported, the module itself is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _check_object(entry: Entry, found: Any) -> list[str]:
    for name in entry.qualname.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            return [f"{name!r} does not exist"]
    wrong = []
    if entry.parameters or entry.overrides:
        if not callable(found):
            wrong.append("is not a function")
        else:
            wrong += entry.compare_parameters(_parameters(found))
    wrong += [
        f"attribute {name!r} does not exist"
        for name in entry.attributes
        if not _has_attribute(found, name)
    ]
    if entry.keys:
        is_mapping = isinstance(found, Mapping)
        wrong += entry.compare_keys(found) if is_mapping else ["is not a mapping"]
    return wrong


def _parameters(function: Any) -> list[Parameter]:
    return [
        Parameter(name, parameter.default is inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls") and parameter.kind not in _VARIADIC
    ]


def _has_attribute(found: Any, name: str) -> bool:
    if hasattr(found, name):
        return True
    cls = found if inspect.isclass(found) else type(found)
    # Fields without a default and attributes of instances are no attributes of the class.
    return any(
        name in vars(base).get("__annotations__", {}) or name in _set_on_self(base)
        for base in cls.__mro__
    )


@cache
def _set_on_self(cls: type) -> frozenset[str]:
    """Names assigned as ``self.NAME`` in a class's own source; empty when it has none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    return frozenset(assigned_on_self(tree))
