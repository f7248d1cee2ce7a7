"""What a user can set about the third tier, checked once."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mimo.l3.registry import ENGINES

_LIMITS: dict[str, tuple[float, float]] = {
    "gib": (1 / 64, math.inf),
    "timeout_s": (0.001, 60.0),
    "wait_s": (0.001, 600.0),
    "breaker_s": (0.0, 600.0),
    "io_threads": (1, 64),
    "slice_bytes": (4096, 1 << 30),
    "keep_alive_s": (0.1, 86400.0),
}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@dataclass(frozen=True)
class L3Settings:
    """The third tier of the KV cache. Times are in seconds."""

    engine: str = "lmdb"
    """Name of an engine, or ``module:attribute`` of one's own."""
    path: str | None = None
    """Folder of the values on this machine's disk; its parent must exist."""
    gib: float = 64.0
    """GiB that the folder may take; least recently used values go first."""
    timeout_s: float = 0.2
    """Deadline of one batch of gets or exists; what is late is a miss."""
    wait_s: float = 2.0
    """How long a request may wait for the tier in all; also the deadline of one put."""
    breaker_s: float = 1.0
    """After a run of failures an engine is left alone for so long."""
    io_threads: int = 4
    """Threads that call the engine."""
    slice_bytes: int = 1 << 20
    """Gets are handed out in pieces of so many bytes; some engines store values in such pieces."""
    weight_version: str = ""
    """Part of every key: change it when the weights behind a model's name change."""
    tenant: str = ""
    """Whose values these are, where a request names no tenant."""
    encryption_key_file: str | None = None
    """File with 32 raw bytes or 64 hex digits, readable by its owner only: AES-256-GCM."""
    keep_alive_s: float = 60.0
    """How often values of a running request are marked as used."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
            if not any(_is(value, kind) for kind in kinds):
                words = " or ".join(_WORDS.get(kind, "null") for kind in kinds)
                raise ValueError(f"l3: {field.name!r} must be {words}, got {value!r}")
        for key, (low, high) in _LIMITS.items():
            value = getattr(self, key)
            if not low <= value <= high:
                most = "or more" if high == math.inf else f"to {high:g}"
                raise ValueError(f"l3: {key!r} must be {low:g} {most}, got {value!r}")
        if self.engine not in ENGINES and ":" not in self.engine:
            raise ValueError(
                f"l3: 'engine' must be one of {', '.join(sorted(ENGINES))} or 'module:attribute', "
                f"got {self.engine!r}"
            )
        if self.engine == "lmdb" and not self.path:
            raise ValueError("l3: 'path' is missing: name a folder on a local disk for the engine")

    @staticmethod
    def parse(raw: Mapping[str, object]) -> L3Settings:
        """Settings from a config's mapping; ValueError names the key and what is valid."""
        known = [field.name for field in dataclasses.fields(L3Settings)]
        for key in raw:
            if key not in known:
                raise ValueError(f"l3: unknown key {key!r}; known are {', '.join(known)}")
        return L3Settings(**typing.cast(dict[str, typing.Any], dict(raw)))


def _is(value: object, kind: type) -> bool:
    if kind is float:  # whole numbers are numbers too, but true and nan are not
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        )
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
