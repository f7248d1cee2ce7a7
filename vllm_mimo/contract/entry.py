"""One thing that the plugin relies on in vLLM, and the sentences that say how it broke."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as both checkers see it: its name, and whether a caller must pass it."""

    name: str
    required: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A class, function, method or module-level value of vLLM.

    modules: where it may live; the first module that exists must have it (names move between
        releases, see ``vllm_mimo.compat``).
    qualname: dotted name inside the module, such as ``Class.method``.
    parameters: names of the parameters that we pass, without ``self``. A parameter that vLLM
        requires and that is not listed is a problem too: our call would fail.
    overrides: we replace this method, so vLLM passes the parameters and ours must take them all:
        the parameters must be exactly these.
    attributes: names that a class or object must have: class variables, enum members, fields,
        methods, and attributes set on ``self``.
    keys: strings that a mapping must contain.
    used_by, why: the module of ours that breaks without it, and what it wants it for.
    """

    modules: tuple[str, ...]
    qualname: str
    used_by: str
    why: str
    parameters: tuple[str, ...] = ()
    overrides: bool = False
    attributes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def problem(self, what: str, module: str = "") -> str:
        """A sentence: where it broke, what broke, and who needs it."""
        where = f"{module or ' or '.join(self.modules)}:{self.qualname}"
        return f"{where}: {what} (needed by {self.used_by}: {self.why})"

    def compare_parameters(self, found: Sequence[Parameter]) -> list[str]:
        """What is wrong with a signature, given its parameters without ``self`` and ``*args``."""
        names = [parameter.name for parameter in found]
        wrong = [
            f"parameter {name!r} does not exist (it has {', '.join(names) or 'none'})"
            for name in self.parameters
            if name not in names
        ]
        wrong += [
            f"parameter {parameter.name!r} is new, and vLLM passes it to our override"
            if self.overrides
            else f"parameter {parameter.name!r} is required, and we do not pass it"
            for parameter in found
            if (self.overrides or parameter.required) and parameter.name not in self.parameters
        ]
        return wrong

    def compare_keys(self, found: Collection[str]) -> list[str]:
        """Which keys a mapping lacks."""
        return [f"key {key!r} does not exist" for key in self.keys if key not in found]
