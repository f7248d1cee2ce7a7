"""What a user writes on the command line, as numbers: sizes, lengths, mixes of contexts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_TOKEN_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "mb": 10**6,
    "gb": 10**9,
    "mib": 2**20,
    "gib": 2**30,
}
_NUMBER = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([a-zA-Z]*)\s*")


class PlanError(ValueError):
    """A plan that cannot be made; the message says in one line what to change."""


@dataclass(frozen=True, slots=True)
class MixPart:
    """A context length and the share of the running requests that have it."""

    tokens: int
    share: float


def parse_tokens(text: str) -> int:
    """ "32k" -> 32,768 (k and m are powers of 1024). Raises PlanError."""
    return _parse(text, _TOKEN_UNITS, "a number of tokens such as 4096, 32k or 1m")


def parse_bytes(text: str) -> int:
    """ "141GB" -> 141 * 10^9, "80GiB" -> 80 * 2^30; without a unit, bytes. Raises PlanError."""
    return _parse(text, _BYTE_UNITS, "a size such as 141GB, 80GiB or a number of bytes")


def parse_mix(text: str) -> tuple[MixPart, ...]:
    """ "4k:0.5,32k:0.5" -> its parts. Raises PlanError unless the shares add up to 1."""
    parts = []
    for item in text.split(","):
        length, colon, share = item.partition(":")
        try:
            value = float(share) if colon else math.nan
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise PlanError(
                f"--context-mix: '{item}' is not LENGTH:SHARE with a share above 0 and up to 1, "
                "such as 32k:0.3"
            )
        parts.append(MixPart(parse_tokens(length), value))
    total = sum(part.share for part in parts)
    if abs(total - 1) > 0.001:
        raise PlanError(f"--context-mix: the shares add up to {total:g}, not to 1")
    return tuple(parts)


def clip_mix(mix: tuple[MixPart, ...], longest: int) -> tuple[MixPart, ...]:
    """`mix` with what exceeds `longest` tokens cut down to it."""
    return tuple(MixPart(min(part.tokens, longest), part.share) for part in mix)


def format_tokens(tokens: int) -> str:
    """131,072 -> "128K": the shortest way to write a length exactly."""
    for unit, letter in ((1024**2, "M"), (1024, "K")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens:,}"


def _parse(text: str, units: dict[str, int], what: str) -> int:
    match = _NUMBER.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise PlanError(f"'{text}' is not {what}")
    value = int(float(match[1]) * unit)
    if value < 1:
        raise PlanError(f"'{text}' is not above 0: give {what}")
    return value
