"""Readers: what they read, and what they say about files they cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.replay.traces import mooncake, session, turn, write_lines
from vllm_mimo.traces import TraceError, read_trace
from vllm_mimo.traces.form import runs_of
from vllm_mimo.traces.weka import SESSION_BITS, slice_runs

BASE = 1 << SESSION_BITS


def error_of(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return str(caught.value)


def test_weka(tmp_path: Path) -> None:
    first = turn(0.0, [[1, 2]], 130, output=100, api=3.5, think=2.0)
    second = turn(9.0, [[1, 4], [7, 1]], 330, stop="end_turn", a="sub")
    trace = read_trace(write_lines(tmp_path / "t.jsonl.gz", session(first, second)))
    assert (trace.format, trace.timing, trace.has_blocks) == ("weka_agentic", "sessions", True)
    one, two = trace.requests
    assert one.prompt_blocks == ((BASE + 1, 2),)
    assert one.output_blocks == ((BASE + 3, 1),)  # 230 tokens: the third block is full
    assert (one.duration_s, one.think_s, one.ended_in_tool_call) == (3.5, 2.0, True)
    assert (two.ended_in_tool_call, two.agent, two.arrival_s) == (False, "sub", 9.0)
    assert two.output_blocks == ()


def test_sessions_share_no_ids(tmp_path: Path) -> None:
    same = session(turn(0.0, [[1, 2]], 130))
    one, two = read_trace(write_lines(tmp_path / "t.jsonl", same, same)).requests
    assert one.session != two.session
    assert one.prompt_blocks != two.prompt_blocks


@pytest.mark.parametrize(
    ("later", "known"),
    [
        (turn(1.0, [[1, 5]], 330), ((BASE + 3, 1),)),
        (turn(1.0, [[1, 3]], 200), ()),  # shorter than prompt and output: not verbatim
        (turn(1.0, [[1, 1], [9, 4]], 330), ()),  # another branch
    ],
)
def test_outputs_are_told_by_prompts_that_extend_them(
    tmp_path: Path, later: dict, known: tuple
) -> None:
    path = write_lines(tmp_path / "t.jsonl", session(turn(0.0, [[1, 2]], 130, output=100), later))
    assert read_trace(path).requests[0].output_blocks == known


def test_unknown_durations_and_endings(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", session(turn(0.0, [[1, 1]], 70, api=None, stop="")))
    (request,) = read_trace(path).requests
    assert request.duration_s is None and request.ended_in_tool_call is None


def test_mooncake(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t.jsonl", mooncake(3000, 600, 5, [4, 9]), mooncake(1500, 512, 1, [4])
    )
    trace = read_trace(path)
    assert (trace.format, trace.timing) == ("mooncake", "timestamps")
    assert [request.arrival_s for request in trace.requests] == [1.5, 3.0]
    assert trace.requests[1].prompt_blocks == ((4, 1), (9, 1))


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:04.0799600,3180,8\r\n"
    )
    trace = read_trace(path)
    assert not trace.has_blocks
    assert [round(request.arrival_s, 3) for request in trace.requests] == [0.0, 0.1]
    assert trace.requests[1].output_tokens == 8


def test_servegen_is_recognised_and_refused(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    assert "ServeGen" in error_of(tmp_path) and "no block hashes" in error_of(tmp_path)


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


GOOD = session(turn(0.0, [[1, 2]], 130))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines(GOOD) + '{"id": "x", "blo', ":2: not JSON"),
        (lines(GOOD, [1]), ":2: a JSON object"),
        (lines(GOOD, {"block_size": 64}), ":2: field 'requests' is missing"),
        (lines(session(turn(0.0, [[1, 2]], -5))), ":1: request 1: 'in' is -5"),
        (lines(session(turn(0.0, [[1, 2]], 130, output=-1))), "'out' is -1"),
        (lines(session(turn(-1.0, [[1, 2]], 130))), "'t' is -1.0"),
        (lines(session(turn(0.0, [[1, 3]], 130))), "'h' lists 3 blocks"),
        (lines(session(turn(0.0, [[1, "2"]], 130))), "pairs [first id, count]"),
        (lines(mooncake(0, 600, 1, [1])), ":1: 'hash_ids' lists 1 blocks"),
        (lines(mooncake(0, 600, 1, [1, -2])), "'hash_ids' must hold"),
        (lines({"hash_ids": [1]}), "field 'input_length' is missing"),
        (lines({"prompt": "x"}), "no known trace format"),
        ("TIMESTAMP,ContextTokens\n", ":1: the header"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,x,1\n", ":2: "),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,-1,1\n", ":2: negative"),
        ("hello\n", ":1: no known trace format"),
        ("\n", "empty"),
    ],
)
def test_errors_name_file_line_and_cause(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    message = error_of(path)
    assert message.startswith(str(path)) and said in message and "\n" not in message


def test_wrong_gzip(tmp_path: Path) -> None:
    fake = tmp_path / "t.jsonl.gz"
    fake.write_text(lines(GOOD))
    assert "not gzip data" in error_of(fake)
    whole = write_lines(tmp_path / "w.jsonl.gz", *[GOOD] * 50).read_bytes()
    fake.write_bytes(whole[: len(whole) // 2])
    assert "damaged gzip data" in error_of(fake)


def test_absent_and_binary_files(tmp_path: Path) -> None:
    assert "No such file" in error_of(tmp_path / "none.jsonl")
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in error_of(tmp_path / "x.jsonl")
    assert "not ServeGen's" in error_of(tmp_path)


def test_runs() -> None:
    runs = runs_of([3, 4, 5, 9, 1, 2])
    assert runs == ((3, 3), (9, 1), (1, 2))
    assert slice_runs(runs, 1, 5) == ((4, 2), (9, 1), (1, 1))
    assert slice_runs(runs, 5, 9) == ((2, 1),)
