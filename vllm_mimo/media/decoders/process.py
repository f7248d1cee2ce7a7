"""What all videos decoded in this process have in common: the decoder and the thread budget."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from vllm_mimo.media.decoders.budget import Budget, usable_cores

BACKEND = "pyav"
"""The fastest one whose frames are exact."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Settings of a process and its budget."""

    backend: str
    budget: Budget
    keep_truncated: bool = False
    """Whether of a video that is cut short the rest is decoded."""


_lock = threading.Lock()
_current: Decoding | None = None


def process_decoding() -> Decoding:
    """The settings in force: the last ones given, else the defaults."""
    return _current or set_decoding()


def set_decoding(
    backend: str = BACKEND, threads: int | None = None, keep_truncated: bool = False
) -> Decoding:
    """Choose the decoder, the number of threads for all videos decoded at a time (None for as many
    as the process has cores), and what is done with videos that are cut short. Videos that are
    being decoded keep the budget they have.
    """
    global _current
    count = threads or usable_cores()
    with _lock:
        same = _current is not None and _current.budget.threads == count
        budget = _current.budget if same and _current is not None else Budget(count)
        _current = Decoding(backend, budget, keep_truncated)
        return _current
