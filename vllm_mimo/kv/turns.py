"""Which earlier turn a request continues, known from its block hashes alone.

The engine has no session ids. Every few blocks of a prompt's hash chain are remembered with the
turn that used them last; the deepest one that a new prompt shares names the turn it comes from:

- it shares at least half of that turn's prompt: its next turn. The earlier turn is superseded; what
  the new one did not take over is a branch that nobody will ask for.
- it shares less: a fork (another session under the same system prompt, a sub-agent, an edited
  history). Whether the earlier turn still comes back is learned as a class of its own.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import IntEnum

from vllm_mimo.kv.return_times import ReturnTimes, class_of

_STRIDE_TOKENS = 512
"""Tokens between two remembered places of a chain."""

_MAX_PLACES = 1 << 18
"""Remembered places (134 M tokens at the stride); the least recently used go first."""

_REBUILD_EVERY = 32
"""Turns between two renewals of the learned tables."""

_CONTINUED, _CONTINUED_AFTER_FORK = 0.5, 0.9
"""Share of a turn's prompt that its next turn takes over at least."""

_NEW_GAP_WEIGHT = 0.25
"""Weight of the last idle time in a chain's typical one (a mean of logarithms)."""


class Ending(IntEnum):
    """How a turn went idle; the numbers are those of `return_times.class_of`."""

    ITSELF = 0
    """The model ended its answer: a person is to write next."""
    TOOL_CALL = 1
    """The output has tool calls: a client is running them and will come back with the results."""
    UNKNOWN = 2
    """Aborted, out of length, or an output that nobody parsed."""
    FORKED = 3
    """Set by `Turns` only: another chain has branched off the turn since."""


class Turn:
    """One request's chain of prompt blocks; `Turns` alone writes it."""

    __slots__ = ("forked", "kind", "length", "pace", "shared", "since", "superseded")

    def __init__(self, length: int) -> None:
        self.length = length
        """Remembered places in the prompt."""
        self.shared = 0
        """Leading tokens of the prompt that other chains branch from, rounded up to a stride."""
        self.pace: float | None = None
        """Typical idle seconds between turns of the chain so far."""
        self.kind = class_of(Ending.UNKNOWN, None)
        """Class in `ReturnTimes`."""
        self.since: float | None = None
        """Clock when it went idle (or was forked since); None while it runs or is preempted."""
        self.superseded = False
        self.forked = False


class Turns:
    """Follows the chains of all requests of one scheduler and learns when they return."""

    def __init__(self, hash_block_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Each hash of a chain stands for `hash_block_tokens` tokens; the clock gives seconds."""
        self.times = ReturnTimes()
        self._stride = max(1, _STRIDE_TOKENS // hash_block_tokens)
        self._place_tokens = self._stride * hash_block_tokens
        self._clock = clock
        self._owners: OrderedDict[Hashable, Turn] = OrderedDict()
        self._idle: deque[Turn] = deque()
        self._begun = 0

    def begin(self, block_hashes: Sequence[Hashable]) -> Turn:
        """A request was admitted with these prompt hashes (chained, first block first)."""
        # The first block, then the end of each stride: a chain that is known up to place n and no
        # further has fewer than n strides in common, which is the bound that `shared` needs.
        places = [*block_hashes[:1], *block_hashes[self._stride - 1 :: self._stride]]
        turn = Turn(len(places))
        continued: Turn | None = None
        for depth in range(len(places), 0, -1):
            earlier = self._owners.get(places[depth - 1])
            if earlier is not None:
                if self._join(turn, earlier, depth, self._clock()):
                    continued = earlier
                break
        owners = self._owners
        for depth, place in enumerate(places, 1):
            owner = owners.get(place)
            if owner is not continued and owner is not None:
                tokens = depth * self._place_tokens
                owner.shared = max(owner.shared, tokens)
                turn.shared = max(turn.shared, tokens)
            owners[place] = turn
            owners.move_to_end(place)
        while len(owners) > _MAX_PLACES:
            owners.popitem(last=False)
        self._begun += 1
        if self._begun % _REBUILD_EVERY == 0:
            self.times.rebuild(self._still_idle(self._clock()))
        return turn

    def end(self, turn: Turn, ending: Ending) -> None:
        """The turn's request finished. Call once, before its blocks are freed."""
        turn.since = self._clock()
        if turn.forked:
            turn.kind = class_of(Ending.FORKED, None)
        else:
            turn.kind = class_of(ending, turn.pace)
        if not turn.superseded:
            self._idle.append(turn)

    def _join(self, turn: Turn, earlier: Turn, depth: int, now: float) -> bool:
        """`turn` shares its first `depth` places with `earlier`: is it the next turn, or a fork."""
        needed = _CONTINUED_AFTER_FORK if earlier.forked else _CONTINUED
        if not earlier.superseded and depth >= needed * earlier.length:
            idle = 0.0 if earlier.since is None else now - earlier.since
            if earlier.since is not None:
                self.times.observe(earlier.kind, idle, returned=True)
            earlier.superseded = True
            turn.shared = min(depth * self._place_tokens, earlier.shared)
            turn.pace = _mean_gap(earlier.pace, idle)
            return True
        if earlier.superseded:
            return False
        if earlier.since is not None and not earlier.forked:
            self.times.observe(earlier.kind, now - earlier.since, returned=False)
            earlier.kind = class_of(Ending.FORKED, None)
            earlier.since = now
        earlier.forked = True
        return False

    def _still_idle(self, now: float) -> Iterator[tuple[int, float]]:
        """Class and idle seconds of the turns still away; forgets those away for too long."""
        keep: deque[Turn] = deque()
        for turn in self._idle:
            if turn.superseded or turn.since is None:
                continue
            idle = now - turn.since
            if idle > self.times.horizon:
                self.times.observe(turn.kind, idle, returned=False)
                continue
            keep.append(turn)
            yield turn.kind, idle
        self._idle = keep


def _mean_gap(pace: float | None, idle: float) -> float:
    """The chain's typical idle time after one more gap of `idle` seconds."""
    idle = max(idle, 1.0)
    if pace is None:
        return idle
    return math.exp((1 - _NEW_GAP_WEIGHT) * math.log(pace) + _NEW_GAP_WEIGHT * math.log(idle))
