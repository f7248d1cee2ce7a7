"""Whether a value that came as JSON fits a type annotation, and the annotation in words."""

from __future__ import annotations

import json
import types
import typing
from typing import Any, Literal


def describe_type(hint: Any) -> str:
    """A type annotation in words: ``true or false``, ``one of "auto", "native"``, ..."""
    names = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a string",
        type(None): "null",
    }
    if hint in names:
        return names[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        return "an object"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in arguments)
    return " or ".join(describe_type(argument) for argument in arguments)


def matches(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of type ``hint``; JSON's types, so ``true`` is no integer."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, argument) for argument in typing.get_args(hint))
    if origin is Literal:
        return any(value == c and type(value) is type(c) for c in typing.get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    if origin is dict:
        return type(value) is dict
    return type(value) is hint
