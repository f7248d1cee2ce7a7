"""The packets of a video, and where decoding may begin: what a split of the work is planned by."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True, slots=True)
class Packets:
    """One video track's packets in the order in which they are stored and decoded."""

    pts: tuple[int, ...]
    """When each is shown, in ticks; no two are the same."""
    numbers: dict[int, int]
    """Of each by its `pts`."""
    begins: tuple[int, ...]
    """Numbers of the packets that decoding may begin with, ascending; the first is 0."""
    seek: tuple[int, ...]
    """What the container finds each of those by, in ticks."""
    base: Fraction
    """Seconds of a tick."""


def index_packets(
    pts: list[int],
    dts: list[int | None],
    begins: list[int],
    base: Fraction,
    *,
    leading: bool,
    seek_by_pts: bool,
) -> Packets | None:
    """An index, or None where packets cannot be told apart or found again.

    Args:
        pts, dts: of each packet, in the order stored.
        begins: packets that decoding may begin with, as far as they themselves show.
        base: seconds of a tick.
        leading: whether some that follow such a packet may be shown before it. Otherwise those that
            have such followers, or predecessors shown after them, are left out.
        seek_by_pts: whether the container finds packets by `pts`.
    """
    numbers = {stamp: number for number, stamp in enumerate(pts)}
    if not pts or len(numbers) < len(pts):
        return None
    shown = np.array(pts, np.int64)
    if not leading:
        latest = np.maximum.accumulate(shown)
        earliest = np.minimum.accumulate(shown[::-1])[::-1]
        begins = [k for k in begins if pts[k] == earliest[k] and (k == 0 or latest[k - 1] < pts[k])]
    if not begins or begins[0] != 0:
        return None
    # Where the container finds packets by `dts`, a step back would have it find others.
    seek = [stamp for stamp in (pts if seek_by_pts else dts) if stamp is not None]
    if len(seek) < len(pts) or not (seek_by_pts or (np.diff(seek) > 0).all()):
        return None
    return Packets(tuple(pts), numbers, tuple(begins), tuple(seek[k] for k in begins), base)
