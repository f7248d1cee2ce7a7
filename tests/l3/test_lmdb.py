"""The LMDB engine by itself: its values, its order of eviction, its folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from vllm_mimo.l3 import EngineUnavailable, L3Settings, Status, disk
from vllm_mimo.l3 import lmdb_environment as environment
from vllm_mimo.l3.lmdb_engine import LmdbEngine

HIT, MISS, ERROR = Status.HIT, Status.MISS, Status.ERROR
MIB = 1 << 20


@contextlib.contextmanager
def engine_in(path: Path, mib: int = 16):
    engine = LmdbEngine(L3Settings(path=str(path), gib=mib / 1024))
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(tmp_path):
    with engine_in(tmp_path / "l3") as engine:
        yield engine


def data(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def put(engine, key: bytes, value: bytes) -> Status:
    half = len(value) // 2
    view = memoryview(value)
    return engine.put([key], [[view[:half], view[half:]]])[0]


def get(engine, key: bytes, size: int) -> tuple[Status, bytes]:
    target = memoryview(bytearray(size))
    third = size // 3
    status = engine.get_into([key], [[target[:third], target[third:third], target[third:]]])[0]
    return status, bytes(target)


@pytest.mark.parametrize("size", [0, 1, 3000, 4081, 70_000, MIB, 2 * MIB])
def test_values_of_any_size_come_back(engine, size):
    value = data(size, size)
    assert put(engine, b"key", value) is HIT
    assert get(engine, b"key", size) == (HIT, value)
    assert engine.exists([b"key", b"kez", b"ke"]) == [HIT, MISS, MISS]


def test_a_value_of_another_length_is_an_error_and_then_gone(engine):
    put(engine, b"key", data(0, 5000))
    assert get(engine, b"key", 4999)[0] is ERROR
    assert get(engine, b"key", 5001)[0] is ERROR
    engine.flush()
    assert get(engine, b"key", 5000)[0] is MISS
    put(engine, b"key", data(0, 5000))
    put(engine, b"key", data(1, 600))
    assert get(engine, b"key", 600) == (HIT, data(1, 600))


def test_too_long_a_value_is_refused_and_costs_nothing(engine):
    put(engine, b"old", data(0, 5000))
    assert put(engine, b"long", bytes(engine.caps.max_value_bytes + 1)) is ERROR
    assert put(engine, b"most", bytes(engine.caps.max_value_bytes)) is HIT
    assert get(engine, b"old", 5000)[0] is HIT


def test_the_least_recently_used_go_first(engine, monkeypatch):
    monkeypatch.setattr("vllm_mimo.l3.lmdb_tables.GRAIN_NS", 0)
    size = 200_000
    for number in range(40):
        put(engine, b"%04d" % number, data(number, size))
    get(engine, b"0003", size)
    engine.touch([b"0005", b"none"])
    put(engine, b"0007", data(7, size))  # it is there already
    stored = 40
    while engine.exists([b"0008"]) == [HIT]:
        assert put(engine, b"%04d" % stored, data(stored, size)) is HIT
        stored += 1
    alive = [n for n in range(stored) if engine.exists([b"%04d" % n]) == [HIT]]
    assert alive[:3] == [3, 5, 7]
    assert alive[3:] == list(range(alive[3], stored)), "oldest first, without gaps"
    assert all(get(engine, b"%04d" % n, size) == (HIT, data(n, size)) for n in alive)


def test_a_full_store_takes_puts_of_all_sizes_for_ever(engine):
    rng = np.random.default_rng(5)
    latest: dict[bytes, int] = {}
    for number in range(1500):
        size = int(rng.integers(10, 900_000) if number % 3 else rng.integers(10, 20_000))
        key = b"%d" % (number % 400)
        assert put(engine, key, data(number, 8) * (size // 8)) is HIT
        latest[key] = size // 8 * 8
        assert engine.used_bytes() <= 0.9 * 16 * MIB
    found = 0
    for key, size in latest.items():
        status, value = get(engine, key, size)
        if status is HIT:
            found += 1
            # One of the same length stays what it was: a key names its content.
            assert value[:8] * (size // 8) == value
    assert found > 10


def test_prefixes_are_deleted_whole_and_alone(engine):
    for number in range(600):
        put(engine, b"a%d" % number, b"x" * 100)
    put(engine, b"b", b"y")
    assert engine.delete_prefix(b"a") == 600
    assert engine.delete_prefix(b"a") == 0
    assert get(engine, b"b", 1) == (HIT, b"y")
    for _ in range(3):  # their space is used again
        for number in range(12):
            assert put(engine, b"c%d" % number, data(number, MIB)) is HIT


def test_engines_of_one_process_share_an_environment(tmp_path):
    link = tmp_path / "link"
    with engine_in(tmp_path / "l3") as first:
        link.symlink_to(tmp_path / "l3")
        with engine_in(link) as second:
            put(first, b"key", b"value")
            assert get(second, b"key", 5) == (HIT, b"value")
        second.close()  # twice is no error, and closes nobody else's
        assert get(first, b"key", 5) == (HIT, b"value")
    with pytest.raises(EngineUnavailable, match="closed"):
        first.exists([b"key"])
    with engine_in(tmp_path / "l3") as third:
        assert get(third, b"key", 5) == (HIT, b"value")


def test_a_forked_child_lets_go(engine):
    put(engine, b"key", b"value")
    child = os.fork()
    if child == 0:
        try:
            engine.exists([b"key"])
        except EngineUnavailable:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert get(engine, b"key", 5) == (HIT, b"value")


def test_only_the_owner_can_read(tmp_path):
    (tmp_path / "l3").mkdir(0o755)
    umask = os.umask(0)
    try:
        with engine_in(tmp_path / "l3"):
            modes = {
                str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777
                for path in [tmp_path / "l3", *(tmp_path / "l3").rglob("*")]
            }
    finally:
        os.umask(umask)
    folders = {"l3", "l3/store"}
    assert {name: oct(mode) for name, mode in modes.items()} == {
        name: "0o700" if name in folders else "0o600" for name in modes
    }
    assert len(modes) == 7


def marker(path: Path) -> dict:
    return json.loads((path / "format.json").read_text())


@pytest.mark.parametrize(
    "change",
    [{"boot_id": "before"}, {"ready": False}, {"format": 0}, {"lmdb": "0.8"}, {"wanted_bytes": 1}],
    ids=lambda change: next(iter(change)),
)
def test_what_cannot_be_trusted_is_wiped(tmp_path, change):
    path = tmp_path / "l3"
    with engine_in(path) as engine:
        put(engine, b"key", b"value")
        before = marker(path)
    (path / "format.json").write_text(json.dumps(before | change))
    with engine_in(path) as engine:
        assert get(engine, b"key", 5)[0] is MISS
        assert put(engine, b"key", b"value") is HIT
    assert marker(path) == before
    with engine_in(path) as engine:
        assert get(engine, b"key", 5) == (HIT, b"value")


@pytest.mark.parametrize("damage", ["cut", "gone", "garbage"])
def test_a_damaged_data_file_is_replaced(tmp_path, damage):
    path = tmp_path / "l3"
    with engine_in(path) as engine:
        put(engine, b"key", b"value")
    file = path / "store" / "data.mdb"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        os.truncate(file, 100_000)
    else:
        with file.open("r+b") as out:
            out.write(os.urandom(8192))
    with engine_in(path) as engine:
        assert get(engine, b"key", 5)[0] is MISS
        assert put(engine, b"key", b"value") is HIT


def test_another_size_starts_anew_but_not_under_a_user(tmp_path):
    path = tmp_path / "l3"
    with engine_in(path, 16) as engine:
        put(engine, b"key", b"value")
        with engine_in(path, 32) as other:
            assert other.caps == engine.caps
            assert get(other, b"key", 5) == (HIT, b"value")
    with engine_in(path, 32) as engine:
        assert get(engine, b"key", 5)[0] is MISS
        assert engine.caps.max_value_bytes == 4 * MIB


def refused(path: Path, words: str, mib: int = 16) -> None:
    with pytest.raises(EngineUnavailable, match=words):
        LmdbEngine(L3Settings(path=str(path), gib=mib / 1024))


def test_folders_that_are_not_ours_are_left_alone(tmp_path):
    path = tmp_path / "l3"
    path.mkdir(0o755)
    (path / "thesis.txt").write_text("all of it")
    refused(path, "other files")
    (path / "format.json").write_text('{"format": "mine"}')
    refused(path, "not ours")
    (path / "format.json").write_text(json.dumps({"format": 99, "map_bytes": 1}))
    refused(path, "newer version")
    assert (path / "thesis.txt").read_text() == "all of it"
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "in the way")
    refused(tmp_path / "file" / "l3", "is the disk mounted")
    refused(tmp_path / "none" / "l3", "is the disk mounted")


def test_network_file_systems_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "file_system", lambda path: "nfs4")
    refused(tmp_path / "l3", "network file system")


def mounted(path: Path, *options: str) -> bool:
    """Mount a tmpfs, where this user may."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(path)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def test_a_read_only_folder_is_refused(tmp_path):
    disk_path = tmp_path / "disk"
    if mounted(disk_path, "ro"):
        try:
            refused(disk_path / "l3", "read-only")
        finally:
            subprocess.run(["umount", str(disk_path)], check=True)
    else:
        disk_path.chmod(0o500)
        if os.geteuid() == 0:  # may write anywhere but to what is no disk
            refused(Path("/proc/l3"), "cannot be used")
        else:
            refused(disk_path / "l3", "may not write")


def test_a_store_larger_than_its_disk_shrinks_and_survives_others_filling_it(tmp_path):
    disk_path = tmp_path / "disk"
    if not mounted(disk_path, "size=40m"):
        pytest.skip("needs the right to mount")
    try:
        with engine_in(disk_path / "l3", 1024) as engine:
            assert engine.caps.max_value_bytes < 5 * MIB
            with (disk_path / "others").open("wb", buffering=0) as file, pytest.raises(OSError):
                while True:
                    file.write(bytes(MIB))
            assert disk.free_bytes(disk_path) == 0
            for number in range(100):  # a store to a page without space would kill this process
                assert put(engine, b"%d" % number, data(number, MIB)) is HIT
            assert get(engine, b"99", MIB) == (HIT, data(99, MIB))
        with engine_in(disk_path / "l3", 1024) as engine:
            assert get(engine, b"99", MIB) == (HIT, data(99, MIB))
        refused(disk_path / "l4", "disk is full")
    finally:
        subprocess.run(["umount", "-l", str(disk_path)], check=True)


def test_without_reservations_the_disk_is_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "reserve", lambda descriptor, size: False)
    free = [10 << 30]
    with engine_in(tmp_path / "l3") as engine:
        monkeypatch.setattr(disk, "free_bytes", lambda path: free[0])
        assert put(engine, b"key", b"value") is HIT
        free[0] = MIB
        with pytest.raises(OSError, match="1 MiB of disk left") as caught:
            put(engine, b"other", b"value")
        assert caught.value.errno == errno.ENOSPC
        assert get(engine, b"key", 5) == (HIT, b"value")
    refused(tmp_path / "l4", "disk")


def test_upkeep_writes_ages_down_and_clears_readers(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "UPKEEP_SECONDS", 0.01)
    monkeypatch.setattr(environment, "_READERS_SECONDS", 0.01)
    monkeypatch.setattr("vllm_mimo.l3.lmdb_tables.GRAIN_NS", 0)
    with engine_in(tmp_path / "l3") as engine:
        put(engine, b"a", b"1")
        put(engine, b"b", b"2")
        engine.touch([b"a"])
        tables, until = engine._env.tables, time.monotonic() + 5
        oldest = None
        while oldest != b"b" and time.monotonic() < until:
            txn = engine._env.begin_reading()
            oldest = tables.oldest(txn)
            engine._env.end_reading(txn)
        assert oldest == b"b"
