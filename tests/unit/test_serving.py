"""`ServerProcess` with a small stand-in for `vllm`, and the metrics reader.

The real server is under tests/server; here are the ways to end that it seldom shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_mimo.serving import metrics, process
from vllm_mimo.serving.process import ServerError, ServerProcess, group_members

FAKE = '''
"""What `vllm serve MODE` looks like from outside."""
import http.server, os, signal, subprocess, sys, time
_, command, mode, *arguments = sys.argv
assert command == "serve", command
print("arguments:", arguments, "VISIBLE =", os.environ.get("VISIBLE"), flush=True)
if mode == "dies":
    print("\\n".join(f"line {i}" for i in range(100)) + "\\nThe tensor is missing", flush=True)
    sys.exit(3)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
# Like an engine: a child that would go on without its parent, and that does not heed SIGTERM.
ignore = "import signal as s, time; s.signal(15, s.SIG_IGN); print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignore], stdout=subprocess.PIPE)
child.stdout.readline()
if mode == "slow":
    print("(EngineCore pid=7) INFO 11-29 17:16:11 [core.py:402] loading weights", flush=True)
    time.sleep(600)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

port = int(arguments[arguments.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


@pytest.fixture(autouse=True)
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "fake_vllm.py"
    script.write_text(FAKE)
    monkeypatch.setattr(process, "vllm_command", lambda: [sys.executable, str(script)])
    # Whatever breaks is to show in seconds, not after the minutes that a real server may take.
    monkeypatch.setitem(ServerProcess.__init__.__kwdefaults__, "startup_s", 30)
    return script


def gone(group: int) -> bool:
    return group_members(group) == []


def test_serves_until_the_block_is_left_and_leaves_nothing() -> None:
    with ServerProcess("ok", stop_s=0.5) as server:
        group = server.pid
        assert process.is_healthy(server.url)
        assert len(group_members(group)) == 2
        log = server._log
        assert log is not None
        assert log.exists()
    assert gone(group)
    assert not log.exists()
    assert not process.is_healthy(server.url)


def test_killed_when_it_does_not_stop() -> None:
    with ServerProcess("stubborn", stop_s=0.5) as server:
        group = server.pid
    assert gone(group)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_stops_when_the_block_raises(error: type[BaseException]) -> None:
    with pytest.raises(error), ServerProcess("ok", stop_s=0.5) as server:
        group = server.pid
        raise error
    assert gone(group)


def test_second_ctrl_c_while_it_stops_kills_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, calls = time.sleep, []

    def interrupt(seconds: float) -> None:
        calls.append(seconds)
        if len(calls) == 1:
            raise KeyboardInterrupt
        sleep(seconds)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ServerProcess("stubborn", stop_s=60) as server:
        group = server.pid
        monkeypatch.setattr(process.time, "sleep", interrupt)
    assert gone(group)
    assert time.monotonic() - started < 30


def test_an_early_end_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with pytest.raises(ServerError) as caught, ServerProcess("dies", log=log):
        pytest.fail("the block was entered")
    assert "ended with exit code 3" in str(caught.value)
    assert str(caught.value).endswith("line 99\nThe tensor is missing")
    assert "line 20\n" not in str(caught.value)
    assert "line 20\n" in log.read_text()  # a log that was asked for stays


def test_a_server_that_takes_too_long_is_stopped() -> None:
    told: list[str] = []
    server = ServerProcess("slow", startup_s=1.0, stop_s=0.5, progress=told.append, progress_s=0.3)
    server.start()
    group = server.pid
    with pytest.raises(ServerError, match=r"did not answer within 1 s(.|\n)*loading weights"):
        server.wait_until_healthy()
    server.stop()
    assert gone(group)
    assert told[-1].endswith("s  loading weights")  # vLLM's prefix is cut off


def test_ctrl_c_while_it_starts_leaves_nothing() -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    server = ServerProcess("slow", stop_s=0.5, progress=interrupt, progress_s=0.3)
    with pytest.raises(KeyboardInterrupt), server:
        pytest.fail("the block was entered")
    assert [p for p in subprocess_ids() if f"--port {server.port}" in p] == []


def subprocess_ids() -> list[str]:
    """Command lines of all processes."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


def test_environment_is_changed_for_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISIBLE", "outer")
    for env, seen in (({}, "outer"), ({"VISIBLE": "inner"}, "inner"), ({"VISIBLE": None}, "None")):
        with ServerProcess("ok", ["--flag"], env=env, stop_s=0.1) as server:
            assert f"VISIBLE = {seen}" in server.log()
            assert "arguments: ['--flag', '--host', '127.0.0.1', '--port'" in server.log()
    assert os.environ["VISIBLE"] == "outer"


def test_the_server_and_its_children_end_when_their_parent_is_killed(fake_vllm: Path) -> None:
    script = f"""
import sys, time
from vllm_mimo.serving import process
process.vllm_command = lambda: [sys.executable, {str(fake_vllm)!r}]
with process.ServerProcess("stubborn", stop_s=0.5) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert len(group_members(group)) == 2
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 10
    while not gone(group):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.1)


def test_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with ServerProcess("ok", stop_s=0.1) as server:
        assert process.is_healthy(server.url)


def test_free_ports_can_be_bound() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", process.free_port()))


PAGE = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 200.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 256.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.75
"""


def test_metrics_are_added_up_over_engines() -> None:
    values = metrics.parse(PAGE)
    assert values == {
        "vllm:prefix_cache_queries_total": 1200,
        "vllm:prefix_cache_hits_total": 256,
        "vllm:num_requests_running": 3,
        "vllm:time_to_first_token_seconds_count": 5,
        "vllm:time_to_first_token_seconds_sum": 0.75,
    }
    assert metrics.PrefixCache.of(values) == metrics.PrefixCache(queries=1200, hits=256)


def test_differences_of_metrics() -> None:
    before = {metrics.PREFIX_QUERIES: 100.0, metrics.PREFIX_HITS: 0.0}
    after = {metrics.PREFIX_QUERIES: 500.0, metrics.PREFIX_HITS: 300.0, "new": 2.0}
    grown = metrics.difference(before, after)
    assert grown == {metrics.PREFIX_QUERIES: 400, metrics.PREFIX_HITS: 300, "new": 2}
    assert metrics.PrefixCache.of(grown).rate == 0.75
    assert metrics.PrefixCache(0, 0).rate == 0
    with pytest.raises(KeyError):
        metrics.PrefixCache.of({})
