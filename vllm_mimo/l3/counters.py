"""What the client counts."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_mimo.l3.outcome import HIT, MissCause, Outcome

_LATENCIES = 1024


@dataclass(frozen=True)
class L3Stats:
    """Counts since the client was made; keys are counted, not slices."""

    hits: int
    """Keys whose value was read and checked."""
    misses: Mapping[MissCause, int]
    """Keys that were asked for in a get and not had, by cause."""
    stored: int
    """Keys that puts stored, or found stored."""
    not_stored: Mapping[MissCause, int]
    """Keys that puts did not store, by cause."""
    exists_hits: int
    exists_misses: Mapping[MissCause, int]
    bytes_read: int
    """Of values, in the engine's gets that were hits."""
    bytes_written: int
    """Of values, in the engine's puts."""
    read_seconds: float
    """Time in the engine's gets, with the check; of all threads together."""
    write_seconds: float
    get_p50_s: float
    """Time from a get's call to its outcomes, of the latest 1,024 batches."""
    get_p99_s: float
    breaker_opened: int
    """How often a breaker opened."""
    late_calls: int
    """Engine calls that were still running at their deadline."""

    @property
    def dropped(self) -> int:
        """Keys of puts that found the queue full."""
        return self.not_stored.get(MissCause.DROPPED, 0)

    @property
    def read_bandwidth(self) -> float:
        """Bytes per second of one thread's gets; 0 before the first."""
        return self.bytes_read / self.read_seconds if self.read_seconds else 0.0

    @property
    def write_bandwidth(self) -> float:
        """Bytes per second of one thread's puts; 0 before the first."""
        return self.bytes_written / self.write_seconds if self.write_seconds else 0.0


class Counters:
    """Adds up what threads report."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._outcomes: dict[str, Counter[Outcome]] = {
            verb: Counter() for verb in ("get", "put", "exists")
        }
        self._bytes: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._late = 0

    def ended(self, verb: str, decided: Iterable[tuple[int, Outcome]]) -> None:
        """Keys of a batch of this verb are decided."""
        with self._guard:
            if (counter := self._outcomes.get(verb)) is not None:
                counter.update(outcome for _, outcome in decided)

    def called(self, verb: str, size: int, seconds: float) -> None:
        """A call of the engine moved `size` bytes of values."""
        with self._guard:
            self._bytes[verb] += size
            self._seconds[verb] += seconds  # type: ignore[assignment]  # a Counter of floats

    def took(self, seconds: float) -> None:
        """A batch of gets took so long."""
        with self._guard:
            self._latencies.append(seconds)

    def late(self) -> None:
        """A call was late."""
        with self._guard:
            self._late += 1

    def snapshot(self, breaker_opened: int) -> L3Stats:
        """All counts of this moment."""
        with self._guard:
            misses = {
                verb: {cause: count for cause, count in counter.items() if cause is not HIT}
                for verb, counter in self._outcomes.items()
            }
            hits = {verb: counter[HIT] for verb, counter in self._outcomes.items()}
            times = sorted(self._latencies)
            return L3Stats(
                hits=hits["get"],
                misses=misses["get"],
                stored=hits["put"],
                not_stored=misses["put"],
                exists_hits=hits["exists"],
                exists_misses=misses["exists"],
                bytes_read=self._bytes["get"],
                bytes_written=self._bytes["put"],
                read_seconds=self._seconds["get"],
                write_seconds=self._seconds["put"],
                get_p50_s=times[len(times) // 2] if times else 0.0,
                get_p99_s=times[len(times) * 99 // 100] if times else 0.0,
                breaker_opened=breaker_opened,
                late_calls=self._late,
            )
