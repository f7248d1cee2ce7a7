"""Several processes at one store: what they share, and what a kill leaves behind."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.l3.faulty_engine import set_faults
from tests.paths import ROOT
from vllm_mimo.l3 import HIT, L3Settings, Label, MissCause, Status, open_client
from vllm_mimo.l3.lmdb_engine import LmdbEngine

LABEL = Label("tenant")


def size_of(number: int) -> int:
    return 10_000 + number * 7919 % 120_000


def value(number: int) -> bytes:
    return np.random.default_rng(number).bytes(size_of(number))


def start(code: str, *args: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def settings(path: Path, **more) -> L3Settings:
    return L3Settings(path=str(path), gib=1 / 32, timeout_s=10.0, **more)


# Puts values over and over, evicting; says each batch that is stored.
WRITER = """
import sys
from pathlib import Path
from tests.l3.test_processes import *
client = open_client(settings(Path(sys.argv[1])), b"model", "0")
first = int(sys.argv[2])
while True:
    numbers = range(first, first + 8)
    keys = [(0, b"%032d" % number) for number in numbers]
    bufs = [[memoryview(value(number))] for number in numbers]
    assert client.put(LABEL, keys, bufs).statuses.result() == [HIT] * 8
    print(first, flush=True)
    first += 8
"""


def check(path: Path, numbers: range) -> list[int]:
    """The numbers whose value is there; all of them must be right, none of them corrupt."""
    client = open_client(settings(path), b"model", "0")
    assert client is not None
    try:
        targets = [bytearray(size_of(number)) for number in numbers]
        keys = [(0, b"%032d" % number) for number in numbers]
        transfer = client.get_into(LABEL, keys, [[memoryview(target)] for target in targets])
        outcomes = transfer.statuses.result()
        assert set(outcomes) <= {HIT, MissCause.ABSENT}, client.stats()
        found = []
        for number, outcome, target in zip(numbers, outcomes, targets, strict=True):
            if outcome is HIT:
                assert target == value(number), number
                found.append(number)
        return found
    finally:
        client.close()


def test_killed_writers_leave_right_values_or_none(tmp_path):
    """Two writers at a time, killed at random moments, with eviction going on: hundreds of keys."""
    path, rng = tmp_path / "l3", random.Random(1)
    first, survivors = 0, 0
    for _ in range(6):
        writers = [start(WRITER, path, first), start(WRITER, path, first + 2000)]
        last = [0, 0]
        for index, writer in enumerate(writers):
            assert writer.stdout is not None
            for line in writer.stdout:
                last[index] = int(line)
                if last[index] - first - 2000 * index >= 160 + 8 * index:
                    break
        time.sleep(rng.random() / 50)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for index, writer in enumerate(writers):
            last[index] = max([last[index], *map(int, writer.stdout)])
            writer.wait()
        for index in range(2):
            found = check(path, range(first + 2000 * index, last[index] + 40))
            survivors += len(found)
            newest = set(range(last[index], last[index] + 8))
            assert newest <= set(found), "what was reported stored, and not yet old, is there"
        first += 4000
    assert survivors > 500


TOUCHER = """
import sys
from pathlib import Path
from tests.l3.test_processes import *
engine = LmdbEngine(settings(Path(sys.argv[1])))
target = memoryview(bytearray(1000_000))
while True:
    assert engine.get_into([b"0000"], [[target]]) == [Status.HIT]
    print("read", flush=True)
    time.sleep(0.1)
"""


def test_what_one_process_reads_another_does_not_evict(tmp_path):
    engine = LmdbEngine(settings(tmp_path / "l3"))
    size = 1000_000
    engine.put([b"0000", b"0001"], [[memoryview(bytes(size))]] * 2)
    reader = start(TOUCHER, tmp_path / "l3")
    try:
        assert reader.stdout is not None
        number = 2
        while engine.exists([b"0001"]) == [Status.HIT]:
            engine.put([b"%04d" % number], [[memoryview(bytes(size))]])
            number += 1
            reader.stdout.readline()
        assert number > 20
        assert engine.exists([b"0000"]) == [Status.HIT]
    finally:
        reader.kill()
        reader.wait()
        engine.close()


STOPPED = """
import sys
from pathlib import Path
from tests.l3.test_processes import *
engine = LmdbEngine(settings(Path(sys.argv[1])))
if sys.argv[2] == "reading":
    txn = engine._env.begin_reading()
    print("ready", flush=True)
    time.sleep(100)
with engine._env.writing() as txn:
    print("ready", flush=True)
    time.sleep(100)
"""


def test_a_killed_reader_does_not_fill_the_store(tmp_path):
    engine = LmdbEngine(settings(tmp_path / "l3"))
    engine.put([b"first"], [[memoryview(bytes(1000))]])
    reader = start(STOPPED, tmp_path / "l3", "reading")
    assert reader.stdout is not None
    reader.stdout.readline()
    reader.kill()
    reader.wait()
    for number in range(100):
        assert engine.put([b"%d" % number], [[memoryview(bytes(1000_000))]]) == [Status.HIT]
    engine.close()


def test_a_writer_that_stops_with_the_lock_costs_puts_only(tmp_path):
    client = open_client(settings(tmp_path / "l3", wait_s=0.3, breaker_s=0.2), b"model", "0")
    assert client is not None
    keys = [(0, b"%032d" % number) for number in range(3)]
    bufs = [[memoryview(value(number))] for number in range(3)]
    assert client.put(LABEL, keys, bufs).statuses.result() == [HIT] * 3
    writer = start(STOPPED, tmp_path / "l3", "writing")
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        late = client.put(LABEL, [(1, b"k")], [[memoryview(b"v")]])
        assert late.statuses.result(5) == [MissCause.TIMEOUT]
        assert not late.released.done()
        targets = [[memoryview(bytearray(size_of(number)))] for number in range(3)]
        assert client.get_into(LABEL, keys, targets).statuses.result(5) == [HIT] * 3
    finally:
        writer.kill()
        writer.wait()
    late.released.result(5)
    time.sleep(0.3)
    assert client.put(LABEL, [(1, b"l")], [[memoryview(b"v")]]).statuses.result(5) == [HIT]
    client.close()


SERVED = """
import json, sys, time
from vllm_mimo.l3 import L3Settings, Label, open_client
client = open_client(L3Settings.parse(json.loads(sys.argv[1])), b"model", "0")
if client is None:
    print("none", flush=True)
    sys.exit()
label, key = Label("t"), [(0, b"k" * 32)]
client.put(label, key, [[memoryview(b"v" * 1000)]]).statuses.result()
for line in sys.stdin:
    target = memoryview(bytearray(1000))
    begin = time.monotonic()
    (outcome,) = client.get_into(label, key, [[target]]).statuses.result()
    assert time.monotonic() - begin < 1
    print(outcome.value, flush=True)
client.close()
print("closed", flush=True)
"""


def test_faults_can_be_ordered_in_a_process_known_by_its_config_only(tmp_path):
    path = str(tmp_path / "l3")
    config = (
        f'{{"engine": "tests.l3.faulty_engine:FaultyEngine", "path": "{path}", "gib": 0.02, '
        '"timeout_s": 0.1, "breaker_s": 0.05, "wait_s": 0.3}'
    )
    server = subprocess.Popen(
        [sys.executable, "-c", SERVED, config],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def ask(faults: dict) -> str:
        set_faults(path, faults)
        time.sleep(0.1)  # a breaker that is open closes
        server.stdin.write("get\n")
        server.stdin.flush()
        return server.stdout.readline().strip()

    assert ask({}) == "hit"
    assert ask({"get_into": {"kind": "raise"}}) == "error"
    assert ask({}) == "hit"
    assert ask({"get_into": {"kind": "hang"}}) == "timeout"
    assert ask({}) == "hit"
    set_faults(path, {"get_into": {"kind": "hang"}, "close": {"kind": "hang"}})
    server.stdin.write("get\n")
    server.stdin.close()
    begin = time.monotonic()
    assert server.stdout.read().split() == ["timeout", "closed"]
    assert server.wait(10) == 0
    assert time.monotonic() - begin < 6
    set_faults(path, {"open": {"kind": "unavailable"}})
    answer = subprocess.run(
        [sys.executable, "-c", SERVED, config], cwd=ROOT, capture_output=True, text=True
    )
    assert answer.stdout == "none\n"
    assert answer.stderr.count("L3 cache: off") == 1
