"""When each request of a trace arrives: sessions played by users, or the trace's own times."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vllm_mimo.traces.form import Trace, TraceError, TraceRequest

USER_STAGGER_S = 7.0
"""Users start this many seconds apart."""

SESSION_PAUSE_S = 30.0
"""A user rests this long after the last request of a session."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a session trace is played."""

    users: int = 32
    """Sessions that are played at once."""
    sessions: int | None = None
    """Take this many sessions, after shuffling; None takes all."""
    seed: int | None = 0
    """Of the shuffle; None plays sessions in the order of the file."""
    gap_cap_s: float = 300.0
    """Longest pause between two requests of a session."""


def schedule(trace: Trace, load: Load) -> list[TraceRequest]:
    """The requests in order of arrival, `arrival_s` counted from the start of the replay.

    Arrivals do not depend on how fast requests are served, so that every policy sees the same.
    Raises TraceError where the trace cannot drive a prefix cache or nothing is left to replay.
    """
    if not trace.requests:
        raise TraceError(f"{trace.path}: no requests")
    if not trace.has_blocks:
        raise TraceError(
            f"{trace.path}: {trace.format} has no block hashes, so it cannot drive a prefix cache; "
            "use a weka_agentic or mooncake trace"
        )
    if trace.timing == "timestamps":
        return sorted(trace.requests, key=lambda request: request.arrival_s)
    return closed_loop(trace.requests, load)


def closed_loop(requests: Iterable[TraceRequest], load: Load) -> list[TraceRequest]:
    """Users play whole sessions back to back, each next session by the user who is free first."""
    by_session: dict[str, list[TraceRequest]] = {}
    for request in requests:
        by_session.setdefault(request.session, []).append(request)
    sessions = list(by_session.values())
    if load.seed is not None:
        random.Random(load.seed).shuffle(sessions)
    free = [user * USER_STAGGER_S for user in range(load.users)]
    played = []
    for session in sessions[: load.sessions]:
        user = min(range(load.users), key=free.__getitem__)
        now, before = free[user], None
        for request in sorted(session, key=lambda request: request.arrival_s):
            if before is not None:
                now += min(max(request.arrival_s - before, 0), load.gap_cap_s)
            before = request.arrival_s
            played.append(replace(request, arrival_s=now))
        free[user] = now + SESSION_PAUSE_S
    played.sort(key=lambda request: request.arrival_s)
    return played
