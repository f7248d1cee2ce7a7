"""Cutting the work on one video into parts for independent decoders.

A part seeks to a packet that decoding may begin with and decodes up to its last wanted frame, so a
cut between two such packets has frames decoded twice, and a cut at one balances less well. Both are
planned, and the one whose largest part is the smaller is taken.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_mimo.media.decoders.index import Packets


@dataclass(frozen=True, slots=True)
class Wanted:
    """A frame to decode."""

    place: int
    """Among the frames that are asked for."""
    frame: int
    """Among the video's frames, in the order shown."""
    packet: int
    """Number of its packet, in the order stored."""
    begin: int
    """Number of the packet to begin decoding with."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one decoder does."""

    wanted: tuple[Wanted, ...]
    """In the order in which they are stored."""
    runs: tuple[tuple[int, int], ...]
    """First and last packet of each stretch to decode, ascending; nothing between is needed."""

    @property
    def cost(self) -> int:
        """Packets in the stretches: the most frames that are decoded."""
        return sum(last - first + 1 for first, last in self.runs)


def locate(packets: Packets, frames: Sequence[int], stamps: Sequence[int]) -> list[Wanted]:
    """Where wanted frames are stored and where decoding begins for each, in the order stored.

    Args:
        packets: of the video.
        frames: numbers of the frames among the video's, in the order asked for.
        stamps: when each of these frames is shown, in ticks.
    """
    found = []
    for place, (frame, stamp) in enumerate(zip(frames, stamps, strict=True)):
        number = packets.numbers[stamp]
        at = bisect.bisect_right(packets.begins, number) - 1
        while at > 0 and packets.pts[packets.begins[at]] > stamp:
            at -= 1  # it is shown before the picture it follows, and may need those before that
        found.append(Wanted(place, frame, number, packets.begins[at]))
    found.sort(key=lambda wanted: wanted.packet)
    for later in range(len(found) - 1, 0, -1):  # a stretch begins where its earliest need does
        if found[later - 1].begin > found[later].begin:
            found[later - 1] = replace(found[later - 1], begin=found[later].begin)
    return found


def split(wanted: Sequence[Wanted], parts: int) -> list[Part]:
    """At most so many parts, in the order stored, whose largest is as small as can be."""
    singles = [[frame] for frame in wanted]
    groups: list[list[Wanted]] = []
    end = -1
    for frame in wanted:
        if frame.begin > end:
            groups.append([])
        groups[-1].append(frame)
        end = frame.packet
    even, aligned = _balance(singles, parts), _balance(groups, parts)
    return min(aligned, even, key=lambda plan: max(part.cost for part in plan))


def _balance(atoms: list[list[Wanted]], parts: int) -> list[Part]:
    """Parts of whole atoms, by bisection of the largest part's cost."""
    whole = _part([frame for atom in atoms for frame in atom])
    best, low, high = [whole], 1, whole.cost
    while low < high:
        middle = (low + high) // 2
        plan = _fill(atoms, middle)
        if plan is not None and len(plan) <= parts:
            best, high = plan, middle
        else:
            low = middle + 1
    return best


def _fill(atoms: list[list[Wanted]], most: int) -> list[Part] | None:
    """As few parts as cost at most `most` each, or None if an atom alone costs more."""
    taken: list[list[Wanted]] = []
    cost, end = 0, -1
    for atom in atoms:
        added = _added(atom, end)
        if not taken or cost + added > most:
            taken.append([])
            cost, added = 0, _added(atom, -1)
            if added > most:
                return None
        taken[-1] += atom
        cost, end = cost + added, atom[-1].packet
    return [_part(frames) for frames in taken]


def _added(atom: list[Wanted], end: int) -> int:
    """Packets to decode for an atom after those up to `end`."""
    added = 0
    for frame in atom:
        added += frame.packet - max(end, frame.begin - 1)
        end = frame.packet
    return added


def _part(wanted: Sequence[Wanted]) -> Part:
    runs: list[tuple[int, int]] = []
    for frame in wanted:
        if runs and frame.begin <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], frame.packet)
        else:
            runs.append((frame.begin, frame.packet))
    return Part(tuple(wanted), tuple(runs))
