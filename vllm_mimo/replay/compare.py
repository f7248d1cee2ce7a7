"""Replays the same requests under several policies and budgets, interleaved, and reports."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vllm_mimo.replay.engine import Replay, Service
from vllm_mimo.replay.policy import ManagerPolicy
from vllm_mimo.replay.report import PolicyResult, result_of
from vllm_mimo.traces.form import TraceRequest


def compare(
    requests: Sequence[TraceRequest],
    policies: Sequence[ManagerPolicy],
    budgets: Sequence[int],
    service: Service,
    progress: Callable[[int], object] = lambda requests: None,
) -> list[PolicyResult]:
    """One result for each policy at each budget, budgets outermost.

    The policies of one budget take turns request by request, so that a busy machine slows all of
    them alike. `progress` is told how many more requests were played. Raises PolicyError.
    """
    results = []
    for budget in budgets:
        replays = [Replay(policy, budget, service) for policy in policies]
        with _quiet_collector():
            rounds = [replay.play(requests) for replay in replays]
            while rounds:
                rounds = [play for play in rounds if next(play, _END) is not _END]
                progress(len(rounds))
        results += [result_of(replay) for replay in replays]
    return results


_END = object()


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keep Python's collector from walking the pools' blocks, as vLLM's engine does."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
