"""The client over a real LMDB store and over faulty engines: right bytes or a miss, in time."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.l3.faulty_engine import set_faults
from tests.paths import ROOT
from vllm_mimo.l3.client import L3Client
from vllm_mimo.l3.keys import Label
from vllm_mimo.l3.open import open_client
from vllm_mimo.l3.outcome import HIT, MissCause
from vllm_mimo.l3.settings import L3Settings

MINE = Label("mine")
FAULTY = "tests.l3.faulty_engine:FaultyEngine"


def settings(path: Path, **more: Any) -> L3Settings:
    return L3Settings.parse({"path": str(path), "gib": 1 / 16, **more})


def opened(path: Path, fingerprint: bytes = b"model", rank: str = "0", **more: Any) -> L3Client:
    client = open_client(settings(path, **more), fingerprint, rank)
    assert client is not None
    return client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[L3Client]:
    made = opened(tmp_path / "l3")
    yield made
    made.close()


def value(seed: int, size: int = 40_000) -> bytes:
    return random.Random(seed).randbytes(size)


def put(client: L3Client, numbers: range | list[int], label: Label = MINE, size: int = 40_000):
    keys = [(0, b"%016d" % n) for n in numbers]
    bufs = [[memoryview(value(n, size)[:100]), memoryview(value(n, size)[100:])] for n in numbers]
    transfer = client.put(label, keys, bufs)
    transfer.released.result(20)
    return transfer.statuses.result(20)


def get(client: L3Client, numbers: range | list[int], label: Label = MINE, size: int = 40_000):
    """Outcomes, and the values of those that are hits."""
    keys = [(0, b"%016d" % n) for n in numbers]
    bufs = [memoryview(bytearray(size)) for _ in numbers]
    transfer = client.get_into(label, keys, [[buf] for buf in bufs])
    outcomes = transfer.statuses.result(20)
    found = [bytes(b) if o is HIT else None for o, b in zip(outcomes, bufs, strict=True)]
    return outcomes, found


def test_what_was_put_is_got_and_nothing_else(client: L3Client) -> None:
    assert put(client, range(20)) == [HIT] * 20
    outcomes, found = get(client, range(25))
    assert outcomes == [HIT] * 20 + [MissCause.ABSENT] * 5
    assert found[:20] == [value(n) for n in range(20)]
    asked = client.exists(MINE, [(0, b"%016d" % n) for n in (3, 30)])
    assert asked.statuses.result(5) == [HIT, MissCause.ABSENT]
    stats = client.stats()
    assert (stats.hits, stats.stored, stats.misses) == (20, 20, {MissCause.ABSENT: 5})


@pytest.mark.parametrize(
    "other",
    [{"fingerprint": b"another model"}, {"rank": "1"}, {"weight_version": "2"}],
    ids=["model", "rank", "weights"],
)
def test_strangers_find_nothing(client: L3Client, tmp_path: Path, other: dict) -> None:
    put(client, range(3))
    stranger = opened(tmp_path / "l3", **other)
    assert get(stranger, range(3))[0] == [MissCause.ABSENT] * 3
    stranger.close()


def test_tenants_find_nothing_of_each_other_and_are_deleted_alone(client: L3Client) -> None:
    theirs = Label("theirs")
    put(client, range(4))
    put(client, range(4), theirs)
    assert get(client, range(4), Label("third"))[0] == [MissCause.ABSENT] * 4
    assert client.delete_tenant("mine").result(10) == 4
    assert get(client, range(4))[0] == [MissCause.ABSENT] * 4
    assert get(client, range(4), theirs)[0] == [HIT] * 4


def test_values_outlive_the_client(tmp_path: Path) -> None:
    first = opened(tmp_path / "l3")
    put(first, range(8))
    first.close()
    second = opened(tmp_path / "l3")
    assert get(second, range(8))[1] == [value(n) for n in range(8)]
    second.close()


def test_files_are_private(client: L3Client, tmp_path: Path) -> None:
    put(client, range(2))
    for path in [tmp_path / "l3", *(tmp_path / "l3").rglob("*")]:
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


def test_the_oldest_values_are_evicted(client: L3Client) -> None:
    size = 1 << 20  # 64 MiB hold fewer than 60 of them
    put(client, range(30), size=size)
    client.touch(MINE, [(0, b"%016d" % 0)]).statuses.result(5)
    time.sleep(1.2)
    put(client, range(30, 80), size=size)
    outcomes, found = get(client, range(80), size=size)
    assert outcomes[-20:] == [HIT] * 20
    assert MissCause.ABSENT in outcomes[1:30]
    assert all(f == value(n, size) for n, f in enumerate(found) if f is not None)


def test_encrypted_values_need_their_key(tmp_path: Path) -> None:
    keys = []
    for name in "ab":
        file = tmp_path / f"key-{name}"
        file.write_bytes(os.urandom(32))
        file.chmod(0o600)
        keys.append(str(file))
    client = opened(tmp_path / "l3", encryption_key_file=keys[0])
    put(client, range(5))
    assert get(client, range(5))[1] == [value(n) for n in range(5)]
    client.close()
    raw = (tmp_path / "l3" / "store" / "data.mdb").read_bytes()
    assert value(3)[:64] not in raw
    other = opened(tmp_path / "l3", encryption_key_file=keys[1])
    assert get(other, range(5))[0] == [MissCause.FOREIGN] * 5
    other.close()


def test_a_key_file_that_others_can_read_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o644)
    assert open_client(settings(tmp_path / "l3", encryption_key_file=str(file)), b"", "") is None
    assert "open to others: chmod 600" in caplog.text


FAULTS: dict[str, tuple[dict, set[Any]]] = {
    "raises": ({"get_into": {"kind": "raise"}}, {MissCause.ERROR}),
    "short": ({"get_into": {"kind": "short"}}, {MissCause.ERROR}),
    "error": ({"get_into": {"kind": "error"}}, {MissCause.ERROR}),
    "foreign": ({"get_into": {"kind": "foreign"}}, {MissCause.CORRUPT, MissCause.FOREIGN}),
    "torn": ({"get_into": {"kind": "torn"}}, {HIT}),  # the store's own bytes are whole
    "half": ({"get_into": {"kind": "half"}}, {HIT, MissCause.CORRUPT}),
    "hangs": ({"get_into": {"kind": "hang"}}, {MissCause.TIMEOUT}),
}


@pytest.mark.parametrize("name", [n for n in FAULTS if n not in ("torn", "half")])
def test_a_faulty_engine_costs_hits_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / "l3"
    client = opened(path, engine=FAULTY, timeout_s=0.1, breaker_s=0.05)
    put(client, range(6))
    faults, causes = FAULTS[name]
    set_faults(str(path), faults)
    begin = time.monotonic()
    outcomes, found = get(client, range(6))
    assert time.monotonic() - begin < 2.0
    assert set(outcomes) <= causes | {MissCause.BREAKER}
    assert all(f is None for f in found)
    set_faults(str(path), {})
    time.sleep(0.2)
    put(client, range(6))  # what failed its check was deleted
    get(client, range(6))  # the breaker's probe
    time.sleep(0.1)
    assert get(client, range(6))[1] == [value(n) for n in range(6)]
    client.close()


def test_a_late_call_keeps_its_buffers(tmp_path: Path) -> None:
    path = tmp_path / "l3"
    client = opened(path, engine=FAULTY, timeout_s=0.1)
    put(client, range(1))
    set_faults(str(path), {"get_into": {"kind": "scribble", "seconds": 0.6}})
    buffer = memoryview(bytearray(40_000))
    transfer = client.get_into(MINE, [(0, b"%016d" % 0)], [[buffer]])
    assert transfer.statuses.result(2) == [MissCause.TIMEOUT]
    assert not transfer.released.done()
    assert not any(buffer[:100])
    transfer.released.result(5)
    assert buffer[0] == 0xEE, "the late write came, and before the buffer was released"
    client.close()


def test_a_damaged_store_is_noticed(tmp_path: Path) -> None:
    client = opened(tmp_path / "l3")
    put(client, range(10))
    client.close()
    data = tmp_path / "l3" / "store" / "data.mdb"
    raw = bytearray(data.read_bytes())
    at = raw.find(value(4)[1000:1064])
    assert at > 0
    raw[at] ^= 1
    data.write_bytes(raw)
    client = opened(tmp_path / "l3")
    outcomes, found = get(client, range(10))
    assert outcomes[4] is MissCause.CORRUPT
    assert [f for n, f in enumerate(found) if n != 4] == [value(n) for n in range(10) if n != 4]
    client.close()


@pytest.mark.parametrize("what", ["a file in the way", "no parent folder", "a full disk"])
def test_a_folder_that_cannot_be_used_is_one_warning(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l3"
    if what == "a file in the way":
        path.write_text("")
    elif what == "no parent folder":
        path = tmp_path / "lost mount" / "l3"
    else:
        monkeypatch.setattr("vllm_mimo.l3.disk.free_bytes", lambda path: 0)
    assert open_client(settings(path), b"model", "0") is None
    assert sum("L3 cache: off" in r.message for r in caplog.records) == 1


CHILD = """
import sys
from pathlib import Path
from tests.l3.test_client import opened, put
client = opened(Path(sys.argv[1]))
for first in range(0, 2000, 10):
    put(client, range(first, first + 10))
    print(first, flush=True)
"""


def test_kill_9_leaves_no_wrong_value_and_what_was_stored(tmp_path: Path) -> None:
    for kill_after in (30, 90, 150):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "l3")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= kill_after:
                child.kill()
                break
        child.wait()
        client = opened(tmp_path / "l3")
        outcomes, found = get(client, range(kill_after + 200))
        for number, (outcome, data) in enumerate(zip(outcomes, found, strict=True)):
            assert outcome in (HIT, MissCause.ABSENT), number
            assert data in (None, value(number)), number
        assert outcomes[: kill_after + 10] == [HIT] * (kill_after + 10)
        client.close()


def test_two_processes_share_a_store(client: L3Client, tmp_path: Path) -> None:
    code = CHILD.replace("2000", "40")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "l3")], cwd=ROOT, check=True)
    assert get(client, range(40))[1] == [value(n) for n in range(40)]


def test_another_boot_wipes_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = opened(tmp_path / "l3")
    put(client, range(3))
    client.close()
    monkeypatch.setattr("vllm_mimo.l3.lmdb_folder.boot_id", lambda: "another")
    client = opened(tmp_path / "l3")
    assert get(client, range(3))[0] == [MissCause.ABSENT] * 3
    client.close()
