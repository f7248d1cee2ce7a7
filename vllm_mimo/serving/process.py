"""`vllm serve` as a child process, gone when the `with` block is left, however that happens."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_POLL = 0.1
"""Seconds between two looks at the child."""
_KILL_S = 10.0
"""Seconds that killed processes may take to go, which can be long with much memory."""
_LOG_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )?[A-Z]+ [\d-]+ [\d:]+ \[[^]]*\] ")
"""Process, level, time and source, which vLLM puts before each message."""
_AGAIN_S = 5.0
"""Seconds until SIGTERM is repeated: vLLM can lose the first one while it starts."""
_GUARD = """
import os, signal, sys, time
if not sys.stdin.buffer.read():
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(int(sys.argv[1]), number)
        except ProcessLookupError:
            break
        time.sleep(float(sys.argv[2]))
"""
"""A process that ends the server should ours be killed: its input then ends without a word."""


class ServerError(RuntimeError):
    """The server ended or did not come up in time; the message holds the end of its log."""


class ServerProcess:
    """One `vllm serve` with everything that it starts.

        with ServerProcess(model, ["--max-model-len", "4096"]) as server:
            OpenAI(base_url=server.url + "/v1", api_key="none")

    Args:
        model: local folder or hub name.
        args: further arguments of `vllm serve`.
        env: environment variables to set, or to remove where the value is None.
        port: TCP port on the loopback address; None takes a free one.
        log: file for the server's output; None takes a temporary one, removed at the end.
        startup_s: seconds until the server must answer on `/health`.
        stop_s: seconds that it gets to stop by itself before it is killed.
        progress: called every `progress_s` seconds while the server starts, with the seconds so
            far and the last message in its log.
    """

    def __init__(
        self,
        model: str | Path,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str | None] | None = None,
        port: int | None = None,
        log: Path | None = None,
        startup_s: float = 600,
        stop_s: float = 30,
        progress: Callable[[str], None] | None = None,
        progress_s: float = 5,
    ) -> None:
        self.model, self.args, self.env = str(model), list(args), dict(env or {})
        self.port = free_port() if port is None else port
        self.startup_s, self.stop_s = startup_s, stop_s
        self._progress, self._progress_s = progress or (lambda line: None), progress_s
        self._log, self._keep_log = log, log is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Root of the server's addresses, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the API server, which is also the id of its process group."""
        if self._process is None:
            raise ServerError("the server has not been started")
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        """Start the server and wait until it is healthy.

        Raises ServerError when it ends or takes longer than `startup_s`; nothing is left running.
        """
        try:
            self.start()
            self.wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the child without waiting for it. `stop` must follow, whatever happens."""
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="vllm-serve-", suffix=".log")
            os.close(handle)
            self._log = Path(name)
        command = [*vllm_command(), "serve", self.model, *self.args]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, **{k: v for k, v in self.env.items() if v is not None}}
        for name in (k for k, v in self.env.items() if v is None):
            environment.pop(name, None)
        with self._log.open("wb") as output:
            # A session of its own: Ctrl-C reaches this process alone, which then stops the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        guard = [sys.executable, "-ISc", _GUARD, str(self.pid), str(self.stop_s)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)

    def wait_until_healthy(self) -> None:
        """Return once `/health` answers; raises ServerError as `__enter__` does."""
        started = time.monotonic()
        spoken = started
        while True:
            code = self.returncode()
            waited = time.monotonic() - started
            if code is not None:
                raise ServerError(
                    f"vllm serve {self.model} ended with exit code {code} after {waited:.0f} s. "
                    f"The end of its log:\n{self.log_tail()}"
                )
            if is_healthy(self.url):
                return
            if waited > self.startup_s:
                raise ServerError(
                    f"vllm serve {self.model} did not answer within {self.startup_s:.0f} s. "
                    f"The end of its log:\n{self.log_tail()}"
                )
            if time.monotonic() - spoken >= self._progress_s:
                spoken = time.monotonic()
                self._progress(f"{waited:4.0f} s  {self.last_message()}")
            time.sleep(_POLL)

    def wait(self, timeout: float) -> int:
        """Wait for the API server to end by itself; returns its exit code.

        Raises ServerError when it still runs after `timeout` seconds.
        """
        if self._process is None:
            raise ServerError("the server has not been started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerError(f"vllm serve {self.model} still runs after {timeout} s") from None

    def returncode(self) -> int | None:
        """The API server's exit code, None while it runs. Negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    def log(self) -> str:
        """Everything that the server has printed so far."""
        return self._log.read_text(errors="replace") if self._log and self._log.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log that are not empty."""
        kept = [line for line in self.log().splitlines() if line.strip()]
        return "\n".join(kept[-lines:])

    def last_message(self) -> str:
        """The last line in the log that vLLM's logger wrote, without its prefix; may be empty."""
        for line in reversed(self.log().splitlines()):
            if prefix := _LOG_PREFIX.match(line):
                return line[prefix.end() :]
        return ""

    def stop(self) -> None:
        """End the server and all its children; does nothing when it is not running.

        SIGTERM first; what is left of the group after `stop_s` gets SIGKILL.
        """
        process, self._process = self._process, None
        if process is None:
            return
        try:
            _end_group(process, self.stop_s)
        finally:
            if self._guard is not None:
                self._guard.communicate(b"stopped")
            if not self._keep_log and self._log is not None:
                self._log.unlink(missing_ok=True)


def vllm_command() -> list[str]:
    """How to call `vllm`: the script beside this Python, else its module."""
    script = Path(sys.executable).parent / "vllm"
    if os.access(script, os.X_OK):
        return [str(script)]
    return [sys.executable, "-m", "vllm.entrypoints.cli.main"]


def free_port() -> int:
    """A TCP port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, timeout: float = 5) -> bytes:
    """Body of a GET of a local address, past any proxy that the environment names.

    Raises OSError when there is no answer or it is an error (`urllib.error.HTTPError`).
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout) as response:
        return bytes(response.read())


def is_healthy(url: str) -> bool:
    """Whether the server at this root address answers on `/health`."""
    try:
        fetch(url + "/health")
    except (OSError, ValueError):
        return False
    return True


def group_members(group: int) -> list[int]:
    """Ids of the processes of a process group that have not ended (zombies do not count)."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone since the folder was listed
            # The name, in brackets, may hold blanks and brackets itself.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                members.append(int(entry.name))
    return members


def _end_group(process: subprocess.Popen[bytes], patience: float) -> None:
    give_up = time.monotonic() + patience
    try:
        # The API server's children outlive it for a moment: the whole group has to be gone.
        while group_members(process.pid) and time.monotonic() < give_up:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            else:
                _signal_group(process, signal.SIGTERM)
            _wait_for_group(process, min(time.monotonic() + _AGAIN_S, give_up))
    finally:  # also when a second Ctrl-C cuts the wait short
        _signal_group(process, signal.SIGKILL)
        process.wait()
        _wait_for_group(process, time.monotonic() + _KILL_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _wait_for_group(process: subprocess.Popen[bytes], until: float) -> None:
    """Return when the group is gone, or at the time `until` of the monotonic clock."""
    while group_members(process.pid) and time.monotonic() < until:
        process.poll()  # else it would stay as a zombie
        time.sleep(_POLL)
