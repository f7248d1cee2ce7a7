"""When idle chains come back, learned online, and what keeping their KV is worth until then.

A chain (the blocks of one turn's prompt) that went idle returns after a time that is learned per
class: how its turn ended times how fast the chain has been coming back so far. The value of a block
of a chain idle for `a` seconds is the Gittins index of the bet "keep it until T, then give up",

    max over T of P(returns in a..T) / E[seconds kept until it returns or T],

in returns per block-second. Evicting the smallest index is LRU where hazards fall with idle time
and all classes are alike; it differs where a class returns seldom (a turn that ended by itself) or
late. On tool calls, times cannot be predicted much better: on the agentic trace length, output,
previous gaps and the session's own mean explain 9 to 12 % of the variance of their logarithm.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ENDINGS = 4
"""Ways in which a turn goes idle: ended by itself, in tool calls, unknown, forked (see `turns`)."""

_PACES = (6.0, 9.0, 13.5, 20.25, 30.4, 45.6)
"""Seconds that bound the classes of a chain's typical idle time; one more class has none yet."""

CLASSES_PER_ENDING = len(_PACES) + 3
"""The ending as a whole (the prior of the others), "no return yet", then one for each pace."""

_FIRST_EDGE, _EDGE_RATIO, _LAST_EDGE = 2.0, 1.5, 4100.0
"""Buckets of idle time: 0 to 2 s, then growing by half, up to 4,100 s; later is never."""

_PRIOR_RATE = (0.1, 0.7, 0.7, 0.1)
"""Before anything is seen, a chain idle for a seconds returns at this / (a + 5 s), per ending."""

_PRIOR_CHAINS = 5.0
"""How many observed chains the prior counts for, at each level."""

_FORGET_AFTER = 16_384
"""Observations after which all counts are halved, so that changed traffic is learned again."""

Floats: TypeAlias = npt.NDArray[np.float64]


def _bucket_edges() -> list[float]:
    edges = [0.0, _FIRST_EDGE]
    while edges[-1] < _LAST_EDGE:
        edges.append(edges[-1] * _EDGE_RATIO)
    return edges


def class_of(ending: int, pace: float | None) -> int:
    """The class of a turn that ended so, in a chain whose typical idle time is `pace` seconds."""
    place = 1 if pace is None else 2 + bisect_right(_PACES, pace)
    return ending * CLASSES_PER_ENDING + place


class ReturnTimes:
    """Hazard of return per class and idle time, and the index tables made from it."""

    def __init__(self) -> None:
        self._edges = _bucket_edges()
        self._starts = np.array(self._edges[:-1])
        self._widths = np.diff(self._edges)
        shape = (ENDINGS * CLASSES_PER_ENDING, len(self._starts))
        self._returns: Floats = np.zeros(shape)
        self._exposure: Floats = np.zeros(shape)
        self._observed = 0
        rates = np.array(_PRIOR_RATE)[:, None]
        self._prior: Floats = rates / (self._starts + self._widths / 2 + 5.0)
        self.rebuild(())

    @property
    def horizon(self) -> float:
        """Idle seconds after which a chain counts as one that never returns."""
        return self._edges[-1]

    def observe(self, kind: int, idle: float, returned: bool) -> None:
        """A chain of class `kind` returned after `idle` seconds, or was given up unreturned."""
        root = kind - kind % CLASSES_PER_ENDING
        idle = max(idle, 0.0)
        seconds = np.clip(idle - self._starts, 0.0, self._widths)
        self._exposure[root] += seconds
        self._exposure[kind] += seconds
        if returned and idle < self.horizon:
            bucket = bisect_right(self._edges, idle) - 1
            self._returns[root, bucket] += 1.0
            self._returns[kind, bucket] += 1.0
        self._observed += 1

    def rebuild(self, idle: Iterable[tuple[int, float]]) -> None:
        """Make the tables anew; `idle` has class and idle seconds of the chains still away."""
        if self._observed > _FORGET_AFTER:
            self._returns *= 0.5
            self._exposure *= 0.5
            self._observed //= 2
        exposure = self._exposure.copy()
        away = list(idle)
        if away:
            kinds = np.array([kind for kind, _ in away])
            ages = np.array([age for _, age in away])
            seconds = np.clip(ages[:, None] - self._starts, 0.0, self._widths)
            np.add.at(exposure, kinds, seconds)
            np.add.at(exposure, kinds - kinds % CLASSES_PER_ENDING, seconds)
        table = self._indices(self._hazards(exposure))
        # What the best class of this idle time or a longer one is worth: no chain idle for longer
        # than a block is worth more than this.
        highest = np.maximum.accumulate(table.max(axis=0)[::-1])[::-1]
        self._table: list[list[float]] = table.tolist()
        self._highest: list[float] = highest.tolist()

    def index(self, kind: int, idle: float) -> float:
        """Expected returns per block-second of a chain of this class, idle for so many seconds."""
        return self._at(self._table[kind], idle)

    def highest(self, idle: float) -> float:
        """The largest index of any class at this idle time or later."""
        return self._at(self._highest, idle)

    def _at(self, row: Sequence[float], idle: float) -> float:
        idle = max(idle, 0.0)
        bucket = bisect_right(self._edges, idle) - 1
        if bucket >= len(row):
            return row[-1] * 0.9 * self._edges[-1] / idle
        start, end = self._edges[bucket], self._edges[bucket + 1]
        following = row[bucket + 1] if bucket + 1 < len(row) else row[bucket] * 0.9
        return row[bucket] + (following - row[bucket]) * (idle - start) / (end - start)

    def _hazards(self, exposure: Floats) -> Floats:
        """Returns per second, [classes, buckets]: a class drawn to its ending, that to a prior."""
        shape = (ENDINGS, CLASSES_PER_ENDING, len(self._starts))
        returns, seconds = self._returns.reshape(shape), exposure.reshape(shape)
        weight = _PRIOR_CHAINS * self._widths
        whole = (returns[:, 0] + weight * self._prior) / (seconds[:, 0] + weight)
        hazards = (returns + weight * whole[:, None]) / (seconds + weight)
        hazards[:, 0] = whole
        return hazards.reshape(len(self._returns), -1)

    def _indices(self, hazards: Floats) -> Floats:
        """The Gittins index at the start of each bucket, [classes, buckets]."""
        table = np.empty_like(hazards)
        passed = np.cumsum(hazards * self._widths, axis=1)
        before = passed - hazards * self._widths
        for bucket in range(hazards.shape[1]):
            here = before[:, bucket, None]
            away_at_start = np.exp(here - before[:, bucket:])
            away_at_end = np.exp(here - passed[:, bucket:])
            kept = np.cumsum((away_at_start - away_at_end) / hazards[:, bucket:], axis=1)
            table[:, bucket] = ((1.0 - away_at_end) / kept).max(axis=1)
        return table
