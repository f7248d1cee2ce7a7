"""The examples run as a user runs them, and print what they promise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.server.conftest import ENV
from vllm_mimo.checkpoints.verify import verify_folder
from vllm_mimo.serving.process import ServerProcess


def run(name: str, *arguments: str) -> str:
    """Standard output of an example that has to succeed."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **ENV},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_openai_client(server: ServerProcess) -> None:
    out = run("openai_client.py", "--base-url", server.url + "/v1")
    assert "reasoning: The notes say falcon:Cairo.\ncontent: falcon:Cairo\n" in out
    assert "without thinking: amber falcon river pebble walnut\n" in out
    assert 'tool call: get_weather {"city": "Oslo"}\n' in out
    assert "after the tool: Oslo: " in out


def test_tiers(tmp_path: Path) -> None:
    plot = tmp_path / "tiers.png"
    out = run("tiers.py", "--prompts", "2", "--length", "1001", "--plot", str(plot))
    for name in ("device", "host memory", "disk, after a restart"):
        found = re.search(rf"^{name} +(\d+\.\d)% +\d+\.\d$", out, re.M)
        assert found is not None, out
        assert float(found[1]) > 90, name
    assert re.search(r"^nothing +0\.0%", out, re.M)
    assert "ok: the same answers from every tier" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_serve_demo() -> None:
    """`make demo`: its own checks are in its exit code; here what it shows."""
    out = run("serve_demo.py")
    assert "Second round: the same requests again" in out
    assert out.count("thinks:") == 10
    assert 'calls:   get_weather {"city": "Oslo"}' in out
    first, second = (
        re.search(rf"^  {name} +(\d+) +(\d+) +\d+%$", out, re.M) for name in ("first", "second")
    )
    assert first is not None
    assert second is not None
    assert first[1] == second[1]  # the same prompts
    assert int(first[2]) < int(second[2]) < int(second[1])
    ok = r"^ok: \d answers, the same in both rounds, and 6 about media; the server is stopped$"
    assert re.search(ok, out, re.M)
    assert re.search(r"^  first +3 +0\n  second +0 +3$", out, re.M), "encoder cache hits"


def test_serve_demo_says_what_is_wrong() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "serve_demo.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_PLUGINS": "other"},
    )
    assert result.returncode == 1
    assert "vllm-mimo is not active: VLLM_PLUGINS: " in result.stderr
    assert "vllm serve" not in result.stdout


def test_offline() -> None:
    out = run("offline.py")
    assert out.count("chat: Where is the") == 3
    assert "generate: The Python standard library" in out
    cached = [int(n) for n in re.findall(r"(\d+) from the prefix cache", out)]
    assert cached[0] == cached[3] == 0
    assert min(cached[1:3]) > 500  # the notes, that the questions share


def test_offline_omni() -> None:
    out = run("offline_omni.py")
    tokens = {title: int(count) for title, count in re.findall(r"^(.+): (\d+) tokens", out, re.M)}
    alone = [tokens[title] for title in ("an image", "a video with sound", "speech")]
    assert min(alone) > 100
    assert max(alone) < tokens["all together"] < sum(alone) + 50
    assert "frames were taken at [0.0, " in out


def test_openai_omni_client(server: ServerProcess) -> None:
    out = run("openai_omni_client.py", "--base-url", server.url + "/v1")
    counts = [int(count) for count in re.findall(r": (\d+) tokens$", out, re.M)]
    assert len(counts) == 4
    assert max(counts[:3]) < counts[3] < sum(counts[:3]) + 50


def test_train_tiny_for_a_few_steps(tmp_path: Path) -> None:
    steps = ("--short-steps", "4", "--long-steps", "2", "--talk-steps", "1")
    out = run("train_tiny.py", "--out", str(tmp_path), *steps)
    assert "parameters" in out
    assert verify_folder(tmp_path) > 100
    first, last = json.loads((tmp_path / "loss.json").read_text())["history"]
    assert (first["step"], last["step"]) == (6, 7)
    assert 4 < last["text"] < 8.5  # six steps teach little: log(2048) is 7.6
    assert (tmp_path / "loss.png").stat().st_size > 1000
