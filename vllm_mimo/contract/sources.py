"""Hold a tree of vLLM sources against the contract, without importing any of it.

This is how a release that cannot be installed on a machine is checked on it. The reader knows as
much Python as the table needs: definitions under ``if`` and ``try``, names imported from other
modules of the tree, base classes inside the tree, dict displays and calls. What a name outside the
tree (torch, the standard library) has is not known, and counts as absent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_mimo.contract.entry import Entry, Parameter
from vllm_mimo.contract.table import ENTRIES

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_sources(root: str | Path, entries: Iterable[Entry] = ENTRIES) -> list[str]:
    """Problems of the sources under ``root`` (the folder that holds ``vllm/``), one sentence each;
    empty when the contract holds. Raises FileNotFoundError when ``root`` holds no such package.
    """
    tree = SourceTree(Path(root))
    entries = tuple(entries)
    packages = {name.partition(".")[0] for entry in entries for name in entry.modules}
    if not any(map(tree.module, packages)):  # a wrong path is no broken contract
        raise FileNotFoundError(f"no package {' or '.join(sorted(packages))} in {root}")
    problems = []
    for entry in entries:
        module = next((name for name in entry.modules if tree.module(name)), None)
        if module is None:
            problems.append(entry.problem("no such module"))
        else:
            problems += [entry.problem(what, module) for what in _check_entry(tree, entry, module)]
    return problems


def _check_entry(tree: SourceTree, entry: Entry, module: str) -> list[str]:
    first, *rest = entry.qualname.split(".")
    found = tree.resolve(module, first)
    name = first
    for following in rest:
        if found is None:
            break
        name, found = following, tree.member(found, following)
    if found is None:
        return [f"{name!r} does not exist"]
    wrong = []
    if entry.parameters or entry.overrides:
        if isinstance(found.node, _Function):
            wrong += entry.compare_parameters(_parameters(found.node))
        else:
            wrong.append("is not a function")
    wrong += [
        f"attribute {name!r} does not exist"
        for name in entry.attributes
        if tree.member(found, name) is None
    ]
    if entry.keys:
        wrong += entry.compare_keys(set(_mapping_keys(found.node)))
    return wrong


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a name is bound: the module, and the statement (or attribute of ``self``) that does."""

    module: str
    node: ast.AST


class SourceTree:
    """The modules under a root folder, parsed when first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, _Module | None] = {}

    def module(self, name: str) -> _Module | None:
        """The module of that dotted name, or None if the tree has none."""
        if name not in self._modules:
            base = self._root.joinpath(*name.split("."))
            candidates = (base / "__init__.py", base.with_suffix(".py"))
            path = next((path for path in candidates if path.is_file()), None)
            self._modules[name] = _Module(name, path) if path else None
        return self._modules[name]

    def resolve(
        self, module: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Definition | None:
        """What ``name`` is bound to in ``module``, following imports inside the tree."""
        source = self.module(module)
        if source is None or (module, name) in seen:
            return None
        seen |= {(module, name)}
        if name in source.names:
            return Definition(module, source.names[name])
        if name in source.imports:
            origin, original = source.imports[name]
            return self.resolve(origin, original, seen) or self._as_module(f"{origin}.{original}")
        for origin in source.star_imports:
            if found := self.resolve(origin, name, seen):
                return found
        return self._as_module(f"{module}.{name}")

    def member(self, owner: Definition, name: str) -> Definition | None:
        """What ``name`` is in a class, in an object of a known class, or in a module."""
        if isinstance(owner.node, ast.Module):
            return self.resolve(owner.module, name)
        if isinstance(owner.node, ast.ClassDef):
            return self._class_member(owner.module, owner.node, name, depth=0)
        # A value: look in the class it is made by (`X = C(...)`) or declared as (`X: C`).
        for expression in _type_expressions(owner.node):
            cls = self._evaluate(owner.module, expression)
            if cls is not None and isinstance(cls.node, ast.ClassDef):
                return self.member(cls, name)
        return None

    def _class_member(
        self, module: str, cls: ast.ClassDef, name: str, depth: int
    ) -> Definition | None:
        bound = _bindings(cls.body)
        if name in bound:
            return Definition(module, bound[name])
        if name in assigned_on_self(cls):
            return Definition(module, cls)
        for base in cls.bases if depth < 20 else ():
            # A generic base `Base[T]` has the members of `Base`.
            expression = base.value if isinstance(base, ast.Subscript) else base
            parent = self._evaluate(module, expression)
            if parent is not None and isinstance(parent.node, ast.ClassDef):
                found = self._class_member(parent.module, parent.node, name, depth + 1)
                if found is not None:
                    return found
        return None

    def _evaluate(self, module: str, expression: ast.expr) -> Definition | None:
        """What a dotted name refers to when it is read in ``module``."""
        if isinstance(expression, ast.Name):
            return self.resolve(module, expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self._evaluate(module, expression.value)
            return self.member(owner, expression.attr) if owner else None
        return None

    def _as_module(self, name: str) -> Definition | None:
        source = self.module(name)
        return Definition(name, source.tree) if source else None


class _Module:
    """One parsed file: the names it defines and the names it imports."""

    def __init__(self, name: str, path: Path) -> None:
        self.tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        self.names = _bindings(self.tree.body)
        self.imports: dict[str, tuple[str, str]] = {}
        self.star_imports: list[str] = []
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for statement in _statements(self.tree.body):
            if isinstance(statement, ast.ImportFrom):
                self._import_from(package, statement)

    def _import_from(self, package: str, statement: ast.ImportFrom) -> None:
        origin = statement.module or ""
        if statement.level:
            parts = package.split(".")
            parents = parts[: len(parts) - statement.level + 1]
            origin = ".".join([*parents, origin] if origin else parents)
        for alias in statement.names:
            if alias.name == "*":
                self.star_imports.append(origin)
            else:
                self.imports[alias.asname or alias.name] = (origin, alias.name)


def assigned_on_self(tree: ast.AST) -> set[str]:
    """Names of the attributes of ``self`` that the code in ``tree`` assigns."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module or class body does, also those in if, try and with."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, block, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _statements(handler.body)


def _bindings(body: Iterable[ast.stmt]) -> dict[str, ast.AST]:
    """Name -> the statement that defines or assigns it; the first wins, so that the definition in a
    ``try`` goes before the fallback.
    """
    bound: dict[str, ast.AST] = {}
    for statement in _statements(body):
        if isinstance(statement, _Function) and any(map(_is_overload, statement.decorator_list)):
            continue
        if isinstance(statement, _Function | ast.ClassDef):
            bound.setdefault(statement.name, statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name):
                        bound.setdefault(node.id, statement)
    return bound


def _is_overload(decorator: ast.expr) -> bool:
    name = decorator.attr if isinstance(decorator, ast.Attribute) else decorator
    return name == "overload" or (isinstance(name, ast.Name) and name.id == "overload")


def _parameters(function: _Function) -> list[Parameter]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    found = [Parameter(arg.arg, i < without_default) for i, arg in enumerate(positional)]
    found += [
        Parameter(arg.arg, default is None)
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [parameter for parameter in found if parameter.name not in ("self", "cls")]


def _type_expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        yield node.annotation
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call):
        yield value.func


def _mapping_keys(node: ast.AST) -> Iterator[str]:
    """String keys of a dict display or of a call with keywords, also those behind ``**``."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else node
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if key is None:
                yield from _mapping_keys(item)
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value
    elif isinstance(value, ast.Call):
        for argument in value.args:
            yield from _mapping_keys(argument)
        for keyword in value.keywords:
            if keyword.arg is None:
                yield from _mapping_keys(keyword.value)
            else:
                yield keyword.arg
