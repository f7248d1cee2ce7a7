"""`vllm-mimo replay` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.replay.traces import mooncake, session, turn, write_lines
from vllm_mimo.cli.main import main
from vllm_mimo.replay.names import parse_size


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    chat = session(turn(0.0, [[1, 15]], 1000, output=5), turn(5.0, [[1, 20]], 1300, output=5))
    return write_lines(tmp_path / "t.jsonl.gz", chat, chat)


def run(*arguments: str | Path) -> int:
    try:
        return main(["replay", *map(str, arguments)])
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        return stop.code


def test_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = ("--policy", "vllm", "--policy", "vllm:dense", "--policy", "mimo")
    assert run(trace, "--budget", "2GB", "--users", "2", *policies, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["requests"], said["prompt_tokens"]) == ("weka_agentic", 4, 4600)
    assert [result["policy"] for result in said["results"]] == ["vllm", "vllm:dense", "mimo"]
    for result in said["results"]:
        assert result["hit_rate"] == pytest.approx(1920 / 4600)
        assert result["recomputed_fraction"] == pytest.approx(1 - 1920 / 4600)
        assert result["evictions"] == {"full": 0, "swa": 0}
    assert said["results"][0]["miss_reasons"] is None
    assert said["results"][2]["miss_reasons"]["no_prefix"] == 4600 - 1920


def test_table_and_options(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sessions", "1", "--order", "file", "--instant", "--requests", "2")
    arguments = ("--policy", "vllm", "--policy", "mimo:eviction=lru,bounded_replay=false")
    assert run(trace, "--budget", "1GiB", "--budget", "2GB", *options, *arguments) == 0
    out = capsys.readouterr().out
    assert "2 requests, 2,300 prompt tokens" in out
    assert out.count("mimo:eviction=lru,bounded_replay=false") >= 4
    assert "41.7%" in out and "58.3%" in out and "no_tail" in out


def test_plot(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "p.png"
    assert run(trace, "--budget", "1GB", "--policy", "vllm", "--plot", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(trace, "--policy", "vllm", "--plot", tmp_path / "p.xyz") == 1
    assert run(trace, "--policy", "vllm", "--plot", tmp_path / "no" / "p.png") == 1
    assert capsys.readouterr().err.count("vllm-mimo replay: --plot") == 2


def test_plot_without_matplotlib(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert run(trace, "--policy", "vllm", "--plot", "p.png") == 1
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", "0GB"], "leaves no bytes"),
        (["--budget", "-1GB"], "--budget"),
        (["--budget", "20 apples"], "write e.g. 20GB"),
        (["--policy", "lru"], "unknown policy 'lru'; valid: mimo,"),
        (["--policy", "vllm:often"], "vllm:TOKENS"),
        (["--policy", "mimo:4"], "unknown policy"),
        (["--users", "0"], "whole number of 1 or more"),
    ],
)
def test_bad_arguments(
    trace: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "GPT-2"], "neither a bundled model (MiMo-V2-Flash"),
        (["--tp", "3"], "cannot be split into 3 ranks"),
        (["--block-size", "48"], "one must be a multiple"),
        (["--policy", "vllm:100"], "multiple of scheduler_block_size"),
        (["--policy", "vllm", "--budget", "100KB"], "give more --budget"),
        (["--policy", "mimo", "--budget", "1MB"], "one request of"),
        (["--policy", "mimo:evict=lru"], "evict"),
        (["--policy", "mimo:tail_interval=-4"], "tail_interval"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    trace: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, *arguments) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("vllm-mimo replay: ") and said in error


def test_broken_traces_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "t.jsonl", mooncake(0, 10, 1, [1]))
    path.write_text(path.read_text() + '{"timestamp": 1, "input_le')
    assert run(path) == 1
    assert f"{path}:2: not JSON" in capsys.readouterr().err
    assert run(write_lines(tmp_path / "e.jsonl", session())) == 1
    assert "no requests" in capsys.readouterr().err
    assert run(tmp_path / "absent") == 1
    assert "No such file" in capsys.readouterr().err


def test_sizes() -> None:
    assert parse_size("20GB") == 20 * 10**9
    assert parse_size("1.5 GiB") == 3 * 2**29
    assert parse_size("512mb") == 512 * 10**6
    assert parse_size("4096") == 4096
