"""Arrival times, against the reference loader that the statistics of the trace were made with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.replay.traces import mooncake, session, turn, write_lines
from vllm_mimo.replay.schedule import Load, schedule
from vllm_mimo.traces import TraceError, read_trace


def reference(sessions: list[dict], users: int, limit: int | None) -> list[tuple[float, int]]:
    """(time, prompt tokens), as shared traces' `load_weka` computes them, from raw sessions."""
    sessions = list(sessions)
    random.Random(0).shuffle(sessions)
    free = [i * 7.0 for i in range(users)]
    events: list[tuple[float, int]] = []
    for one in sessions[:limit]:
        user = min(range(users), key=lambda i: free[i])
        previous: Any = None
        current = free[user]
        for request in sorted(one["requests"], key=lambda q: q["t"]):
            if previous is not None:
                current += min(max(request["t"] - previous, 0), 300)
            previous = request["t"]
            events.append((current, request["in"]))
        free[user] = current + 30
    return sorted(events, key=lambda event: event[0])


@pytest.mark.parametrize(("users", "limit"), [(1, None), (3, None), (3, 5), (32, 9)])
def test_closed_loop(tmp_path: Path, users: int, limit: int | None) -> None:
    draw = random.Random(1)
    sessions = []
    for number in range(12):
        times = [draw.choice([0.0, 5.0, 40.0, 900.0]) * i for i in range(draw.randint(1, 5))]
        draw.shuffle(times)
        turns = [turn(t, [[1, 2]], 128 + (number * 5 + i) % 60) for i, t in enumerate(times)]
        sessions.append(session(*turns))
    trace = read_trace(write_lines(tmp_path / "t.jsonl", *sessions))
    played = schedule(trace, Load(users=users, sessions=limit))
    assert [(r.arrival_s, r.input_tokens) for r in played] == reference(sessions, users, limit)


def test_file_order(tmp_path: Path) -> None:
    sessions = [session(turn(0.0, [[1, 2]], 128 + number)) for number in range(6)]
    trace = read_trace(write_lines(tmp_path / "t.jsonl", *sessions))
    played = schedule(trace, Load(users=1, sessions=4, seed=None))
    assert [request.input_tokens for request in played] == [128, 129, 130, 131]


def test_timestamps_are_kept(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", *(mooncake(t, 10, 1, [1]) for t in (2000, 0)))
    assert [r.arrival_s for r in schedule(read_trace(path), Load())] == [0.0, 2.0]


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,1,1\n")
    with pytest.raises(TraceError, match="no block hashes"):
        schedule(read_trace(path), Load())
    empty = write_lines(tmp_path / "t.jsonl", session())
    with pytest.raises(TraceError, match="no requests"):
        schedule(read_trace(empty), Load())
