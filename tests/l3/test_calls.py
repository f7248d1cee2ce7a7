"""How the client drives engines: deadlines, breaker, threads, queues, slices, cells."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.l3.memory_engine import MemoryEngine
from vllm_mimo.l3 import (
    HIT,
    EngineUnavailable,
    KeySpace,
    L3Client,
    L3Settings,
    Label,
    MissCause,
    StaticDirectory,
    Status,
    Topology,
    workers,
)
from vllm_mimo.l3.batches import flat, slices
from vllm_mimo.l3.breaker import Breaker
from vllm_mimo.l3.keys import tenant_prefix
from vllm_mimo.l3.transfer import Transfer

ABSENT, BREAKER, DROPPED, ERROR, TIMEOUT = (
    MissCause.ABSENT,
    MissCause.BREAKER,
    MissCause.DROPPED,
    MissCause.ERROR,
    MissCause.TIMEOUT,
)
LABEL = Label("tenant")


class Gate(MemoryEngine):
    """A memory engine whose verbs wait at a gate, or raise what the test says."""

    def __init__(self, **caps) -> None:
        super().__init__(**caps)
        self.open = {verb: threading.Event() for verb in ("get_into", "put", "exists", "close")}
        for event in self.open.values():
            event.set()
        self.raises: dict[str, BaseException] = {}
        self.calls: list[str] = []
        self.running = 0

    def pass_gate(self, verb: str) -> None:
        self.calls.append(verb)
        self.running += 1
        self.open[verb].wait(30)
        self.running -= 1
        if verb in self.raises:
            raise self.raises[verb]

    def get_into(self, keys, bufs, watch=None):
        self.pass_gate("get_into")
        return super().get_into(keys, bufs)

    def put(self, keys, bufs, group=""):
        self.pass_gate("put")
        return super().put(keys, bufs, group)

    def exists(self, keys):
        self.pass_gate("exists")
        return super().exists(keys)

    def close(self):
        self.pass_gate("close")
        super().close()


@pytest.fixture
def make():
    clients = []

    def make(engine, directory=None, **settings) -> L3Client:
        values = {"engine": "any:thing", "timeout_s": 0.15, "breaker_s": 0.2, "wait_s": 0.3}
        factory = engine if callable(engine) else lambda cell: engine
        client = L3Client(
            directory or StaticDirectory(),
            factory,
            L3Settings(**(values | settings)),
            KeySpace(b"model", "0"),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        for cell in client._cells:
            for event in getattr(cell.engine, "open", {}).values():
                event.set()
        client.close()


def keys(count: int, group: int = 0, first: int = 0):
    return [(group, b"%016d" % number) for number in range(first, first + count)]


def put(client: L3Client, count: int, size: int = 1000, **more):
    bufs = [[memoryview(bytes([number % 251]) * size)] for number in range(count)]
    return client.put(LABEL, keys(count, **more), bufs)


def get(client: L3Client, count: int, size: int = 1000, callbacks=(), **more):
    targets = [[memoryview(bytearray(size))] for _ in range(count)]
    transfer = client.get_into(LABEL, keys(count, **more), targets, *callbacks)
    return transfer, targets


def eventually(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not true():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_callbacks_come_once_each_before_the_future(make):
    client = make(MemoryEngine(), slice_bytes=4096)
    put(client, 20).statuses.result(5)
    heard: list[tuple[int, object]] = []
    batches: list[list] = []
    transfer, _ = get(client, 30, callbacks=(lambda i, o: heard.append((i, o)), batches.append))
    outcomes = transfer.statuses.result(5)
    assert outcomes == [HIT] * 20 + [ABSENT] * 10
    assert sorted(heard, key=lambda pair: pair[0]) == list(enumerate(outcomes))
    assert batches == [outcomes]


def test_a_callback_that_fails_stops_nothing(make, caplog):
    client = make(MemoryEngine())
    put(client, 3).statuses.result(5)

    def fail(*_):
        raise RuntimeError("the caller's mistake")

    transfer, _ = get(client, 3, callbacks=(fail, fail))
    assert transfer.statuses.result(5) == [HIT] * 3
    assert "a callback failed" in caplog.text


def test_empty_batches_and_empty_values(make):
    client = make(MemoryEngine())
    for transfer in (
        client.put(LABEL, [], []),
        client.get_into(LABEL, [], []),
        client.exists(LABEL, []),
        client.touch(LABEL, []),
    ):
        assert transfer.statuses.result(5) == []
        transfer.released.result(5)
    assert client.put(LABEL, keys(1), [[]]).statuses.result(5) == [HIT]
    assert client.get_into(LABEL, keys(1), [[]]).statuses.result(5) == [HIT]


def test_deadline_tells_what_is_known_and_release_comes_with_the_engine(make):
    engine = Gate()
    client = make(engine, slice_bytes=4096, io_threads=2)
    put(client, 2, size=4000).statuses.result(5)
    engine.open["get_into"].clear()
    original, first = engine.pass_gate, threading.Event()
    # the first call passes, the second waits at the gate
    engine.pass_gate = lambda verb: original(verb) if first.is_set() else first.set()
    begin = time.monotonic()
    transfer, _ = get(client, 2, size=4000)
    outcomes = transfer.statuses.result(5)
    assert 0.1 < time.monotonic() - begin < 0.5
    assert sorted(outcomes, key=str) == sorted([HIT, TIMEOUT], key=str)
    time.sleep(0.1)
    assert not transfer.released.done()
    engine.open["get_into"].set()
    transfer.released.result(5)
    assert transfer.statuses.result() == outcomes, "what came late does not count"


def test_a_hung_thread_is_replaced(make):
    engine = Gate()
    client = make(engine, io_threads=1, breaker_s=0.0)
    put(client, 1).statuses.result(5)
    engine.open["get_into"].clear()
    hung, _ = get(client, 1)
    assert hung.statuses.result(5) == [TIMEOUT]
    assert client.exists(LABEL, keys(2)).statuses.result(5) == [HIT, ABSENT]
    assert put(client, 1, first=7).statuses.result(5) == [HIT]
    engine.open["get_into"].set()
    hung.released.result(5)
    assert get(client, 1)[0].statuses.result(5) == [HIT]
    eventually(lambda: client._calls.threads._live == 1)
    assert client.stats().late_calls == 1


def test_replacements_are_bounded(make):
    engine = Gate()
    client = make(engine, io_threads=2, breaker_s=0.0, timeout_s=0.03)
    engine.open["get_into"].clear()
    for _ in range(12):
        begin = time.monotonic()
        assert set(get(client, 1)[0].statuses.result(5)) <= {TIMEOUT, BREAKER}
        assert time.monotonic() - begin < 1
    assert engine.running <= 5
    assert client._calls.threads._live <= 5


def test_the_breaker_saves_the_deadline_and_one_probe_closes_it(make):
    engine = Gate()
    client = make(engine)
    put(client, 4).statuses.result(5)
    engine.open["get_into"].clear()
    for _ in range(2):
        assert get(client, 1)[0].statuses.result(5) == [TIMEOUT]
    begin = time.monotonic()
    transfer, _ = get(client, 4)
    assert transfer.statuses.result(5) == [BREAKER] * 4
    transfer.released.result(0.1)
    assert time.monotonic() - begin < 0.05
    assert put(client, 1).statuses.result(5) == [HIT], "puts have a breaker of their own"
    time.sleep(0.25)
    before = len(engine.calls)
    probe, other = get(client, 1)[0], get(client, 1)[0]
    assert {probe.statuses.result(5)[0], other.statuses.result(5)[0]} == {TIMEOUT, BREAKER}
    assert len(engine.calls) == before + 1
    engine.open["get_into"].set()
    time.sleep(0.25)
    assert get(client, 4)[0].statuses.result(5) == [HIT] * 4
    assert client.stats().breaker_opened == 2


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyError(), SystemExit(3)])
def test_whatever_is_raised_is_a_miss_with_one_warning(make, caplog, error):
    caplog.set_level(logging.WARNING)
    engine = Gate()
    client = make(engine, breaker_s=0.0, slice_bytes=4096)
    engine.raises = {"get_into": error, "put": error, "exists": error}
    for _ in range(5):
        assert get(client, 30)[0].statuses.result(5) == [ERROR] * 30
        assert put(client, 30).statuses.result(5) == [ERROR] * 30
        assert client.exists(LABEL, keys(3)).statuses.result(5) == [ERROR] * 3
    assert sum("said once" in record.getMessage() for record in caplog.records) == 3
    engine.raises = {}
    assert put(client, 30).statuses.result(5) == [HIT] * 30
    assert get(client, 30)[0].statuses.result(5) == [HIT] * 30


def test_wrong_numbers_of_statuses_are_errors(make):
    engine = Gate()
    client = make(engine, breaker_s=0.0)
    put(client, 3).statuses.result(5)
    for answer in ([], [Status.HIT] * 2, [Status.HIT] * 4, None):
        engine.get_into = engine.exists = engine.put = lambda *a, answer=answer, **k: answer
        assert get(client, 3)[0].statuses.result(5) == [ERROR] * 3
        assert client.exists(LABEL, keys(3)).statuses.result(5) == [ERROR] * 3
        assert put(client, 3).statuses.result(5) == [ERROR] * 3


def test_a_hit_without_bytes_is_no_hit(make):
    engine = Gate()
    client = make(engine)
    engine.get_into = lambda keys, bufs, watch=None: [Status.HIT] * len(keys)
    assert get(client, 3)[0].statuses.result(5) == [MissCause.FOREIGN] * 3


def test_damaged_values_are_removed_so_that_the_next_put_writes(make):
    engine = MemoryEngine()
    client = make(engine)
    put(client, 3).statuses.result(5)
    damaged = next(iter(engine.values))
    engine.values[damaged] = engine.values[damaged][:-1] + b"!"
    outcomes = get(client, 3)[0].statuses.result(5)
    assert sorted(outcomes, key=str) == sorted([HIT, HIT, MissCause.CORRUPT], key=str)
    eventually(lambda: damaged not in engine.values)
    assert len(engine.values) == 2


def test_gets_go_before_puts(make):
    engine = Gate()
    client = make(engine, io_threads=1, timeout_s=5.0, wait_s=5.0)
    put(client, 1).statuses.result(5)
    engine.open["put"].clear()
    engine.calls.clear()
    puts = [put(client, 1, first=number) for number in range(5)]
    eventually(lambda: engine.calls == ["put"])
    transfer, _ = get(client, 1)
    engine.open["put"].set()
    assert transfer.statuses.result(5) == [HIT]
    for each in puts:
        assert each.statuses.result(5) == [HIT]
    assert engine.calls == ["put", "get_into"] + ["put"] * 4


def test_puts_leave_threads_for_gets(make):
    engine = Gate()
    client = make(engine, io_threads=2, wait_s=5.0)
    put(client, 1).statuses.result(5)
    engine.open["put"].clear()
    for number in range(5):
        put(client, 1, first=number)
    assert get(client, 1)[0].statuses.result(5) == [HIT]


def test_a_full_queue_drops_puts(make, monkeypatch):
    monkeypatch.setattr(workers, "QUEUE_BYTES", 10_000)
    engine = Gate()
    client = make(engine, io_threads=1, wait_s=5.0)
    engine.open["put"].clear()
    running = put(client, 1, size=9000)
    eventually(lambda: engine.calls == ["put"])
    queued = put(client, 1, size=9000, first=1)
    full = put(client, 1, size=9000, first=2)
    assert full.statuses.result(1) == [DROPPED]
    full.released.result(1)
    engine.open["put"].set()
    assert running.statuses.result(5) == queued.statuses.result(5) == [HIT]
    assert client.stats().dropped == 1


def test_a_put_that_hangs_is_given_up(make):
    engine = Gate()
    client = make(engine, io_threads=1)
    engine.open["put"].clear()
    transfer = put(client, 2)
    assert transfer.statuses.result(5) == [TIMEOUT] * 2
    assert not transfer.released.done()
    engine.open["put"].set()
    transfer.released.result(5)


@given(
    st.lists(st.integers(0, 40), max_size=5).map(lambda sizes: [bytes([s]) * s for s in sizes]),
    st.integers(1, 20),
)
def test_slices_are_the_value_cut_in_equal_parts(parts, step):
    cut = slices(flat([memoryview(part) for part in parts], writable=False), step)
    whole = b"".join(parts)
    assert b"".join(b"".join(piece) for piece in cut) == whole
    lengths = [sum(view.nbytes for view in piece) for piece in cut]
    assert lengths[:-1] == [step] * (len(lengths) - 1)
    assert len(lengths) == max(1, -(-len(whole) // step))


def test_sliced_values_are_whole_or_missing(make):
    engine = MemoryEngine(max_value_bytes=5000, slicing=True)
    client = make(engine, slice_bytes=4096)
    value = bytes(range(250)) * 100
    bufs = [[memoryview(value)[:3], memoryview(value)[3:]]]
    assert client.put(LABEL, keys(1), bufs).statuses.result(5) == [HIT]
    assert len(engine.values) == 7

    def read(size=25_000):
        target = bytearray(size)
        view = memoryview(target)
        transfer = client.get_into(LABEL, keys(1), [[view[: size // 2], view[size // 2 :]]])
        return transfer.statuses.result(5)[0], bytes(target)

    assert read() == (HIT, value)
    assert client.exists(LABEL, keys(1)).statuses.result(5) == [HIT]
    client.touch(LABEL, keys(1)).statuses.result(5)
    assert len(set(engine.touched)) == 7
    names = sorted(engine.values)
    for size in (4096, 8192, 4096 * 6, len(value) - 1):
        assert read(size)[0] is not HIT, "a part of a value is not a value"
    engine.values.clear()
    assert client.put(LABEL, keys(1), bufs).statuses.result(5) == [HIT]
    one, two = names[1:3]
    engine.values[one], engine.values[two] = engine.values[two], engine.values[one]
    assert read()[0] is MissCause.CORRUPT
    eventually(lambda: one not in engine.values)
    assert client.put(LABEL, keys(1), bufs).statuses.result(5) == [HIT]
    assert read() == (HIT, value)
    del engine.values[names[-1]]
    assert read()[0] is ABSENT
    assert client.exists(LABEL, keys(1)).statuses.result(5) == [ABSENT]


def test_values_too_long_are_refused_alone(make):
    client = make(MemoryEngine(max_value_bytes=2000))
    bufs = [[memoryview(bytes(size))] for size in (1000, 3000, 1000)]
    assert client.put(LABEL, keys(3), bufs).statuses.result(5) == [HIT, ERROR, HIT]


def test_buffers_that_cannot_work_are_refused_at_once(make):
    client = make(MemoryEngine())
    with pytest.raises(ValueError, match="read-only"):
        client.get_into(LABEL, keys(1), [[memoryview(b"x")]])
    with pytest.raises(ValueError, match="contiguous"):
        client.put(LABEL, keys(1), [[memoryview(bytes(10))[::2]]])
    numbers = memoryview(bytearray(80)).cast("Q")
    assert client.put(LABEL, keys(1), [[numbers]]).statuses.result(5) == [HIT]
    assert client.get_into(LABEL, keys(1), [[numbers]]).statuses.result(5) == [HIT]


def test_deleting_a_tenant_leaves_nothing_that_was_on_its_way(make):
    engine = Gate()
    client = make(engine, io_threads=1, wait_s=5.0)
    other = Label("other")
    client.put(other, keys(1), [[memoryview(b"x")]]).statuses.result(5)
    engine.open["put"].clear()
    engine.calls.clear()
    running = put(client, 1)
    eventually(lambda: engine.calls == ["put"])
    queued = put(client, 1, first=1)
    kept = client.put(other, keys(1, first=1), [[memoryview(b"y")]])
    deleted = client.delete_tenant("tenant")
    assert queued.statuses.result(5) == [DROPPED]
    assert put(client, 1, first=2).statuses.result(5) == [DROPPED]
    engine.open["put"].set()
    assert deleted.result(5) == 1
    assert running.statuses.result(5) == kept.statuses.result(5) == [HIT]
    assert not any(key.startswith(tenant_prefix("tenant")) for key in engine.values)
    assert len(engine.values) == 2
    assert put(client, 1).statuses.result(5) == [HIT]


def test_closing_stores_what_is_queued(make):
    engine = Gate()
    client = make(engine, io_threads=1, wait_s=5.0)
    engine.open["put"].clear()
    puts = [put(client, 1, first=number) for number in range(10)]
    threading.Timer(0.1, engine.open["put"].set).start()
    client.close()
    assert all(each.statuses.result(0) == [HIT] for each in puts)
    assert len(engine.values) == 10
    assert engine.closed
    assert get(client, 1)[0].statuses.result(1) == [ERROR]
    assert put(client, 1).statuses.result(1) == [ERROR]
    client.close()


def test_closing_does_not_wait_for_a_hung_engine(make):
    engine = Gate()
    client = make(engine, io_threads=1)
    for event in engine.open.values():
        event.clear()
    hung, _ = get(client, 1)
    puts = [put(client, 1, first=number) for number in range(4)]
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 4
    assert hung.statuses.result(1) == [TIMEOUT]
    assert {each.statuses.result(1)[0] for each in puts} <= {TIMEOUT, DROPPED, BREAKER}
    assert not hung.released.done()


class Moving:
    """A directory that a test changes."""

    def __init__(self, *cells: str) -> None:
        self.topology = Topology(0, 64, cells)
        self.callbacks: list[Callable[[Topology], None]] = []

    def current(self) -> Topology:
        return self.topology

    def watch(self, callback) -> None:
        self.callbacks.append(callback)

    def change(self, *cells: str) -> None:
        self.topology = Topology(self.topology.epoch + 1, 64, cells)
        for callback in self.callbacks:
            callback(self.topology)


def test_a_new_cell_takes_over_its_sets_only(make):
    engines = {name: MemoryEngine() for name in "abc"}
    directory = Moving("a", "b")
    client = make(engines.__getitem__, directory)
    region = memoryview(bytearray(10))
    registered = []
    engines["c"].register = registered.append
    client.register(region)
    labels = [Label("t", f"session {number}") for number in range(60)]
    for label in labels:
        assert client.put(label, keys(1), [[memoryview(b"v")]]).statuses.result(5) == [HIT]
    assert engines["a"].values
    assert engines["b"].values
    directory.change("a", "b", "c")
    eventually(lambda: any(client._cells.of(label).name == "c" for label in labels))
    assert registered == [region]
    for label in labels:
        moved = client._cells.of(label).name == "c"
        assert client.exists(label, keys(1)).statuses.result(5) == [ABSENT if moved else HIT]
    directory.change("a", "b")
    eventually(lambda: all(client._cells.of(label).name != "c" for label in labels))
    assert all(client.exists(each, keys(1)).statuses.result(5) == [HIT] for each in labels)


def test_a_cell_that_fails_takes_only_its_own_with_it(make, monkeypatch, caplog):
    monkeypatch.setattr("vllm_mimo.l3.cells.RETRY_SECONDS", 0.05)
    engines = {"a": Gate(), "b": Gate()}
    broken = {"b"}

    def factory(name):
        if name in broken:
            raise EngineUnavailable("not yet")
        return engines[name]

    client = make(factory, Moving("a", "b"))
    labels = [Label("t", f"session {number}") for number in range(40)]

    def outcomes():
        return {
            client.put(label, keys(1), [[memoryview(b"v")]]).statuses.result(5)[0]
            for label in labels
        }

    assert outcomes() == {HIT, ERROR}
    broken.clear()
    eventually(lambda: all(client._cells.of(label) for label in labels))
    assert outcomes() == {HIT}
    engines["b"].raises["put"] = OSError("gone")
    assert outcomes() == {HIT, ERROR, BREAKER}


def test_no_cell_at_all_is_unavailable(make):
    def factory(name):
        raise EngineUnavailable(f"no {name}")

    before = threading.active_count()
    with pytest.raises(EngineUnavailable, match="no local"):
        make(factory)
    eventually(lambda: threading.active_count() <= before)


def test_a_breaker_counts_runs_and_lets_one_probe_through():
    breaker = Breaker(0.05)
    breaker.failure()
    breaker.success()
    assert not breaker.failure()
    assert breaker.allow()
    assert breaker.failure()
    assert breaker.refuses
    assert not breaker.allow()
    time.sleep(0.06)
    assert not breaker.refuses
    assert breaker.allow()
    assert not breaker.allow()
    breaker.failure()
    time.sleep(0.06)
    assert breaker.allow()
    breaker.success()
    assert breaker.allow()
    assert breaker.allow()


def test_a_transfer_takes_the_first_word_on_each_key():
    transfer = Transfer(3)
    transfer.expect(0, 2)
    transfer.finish([(0, HIT), (1, ABSENT)])
    transfer.finish([(1, HIT), (2, HIT)])
    assert not transfer.statuses.done()
    transfer.finish([(0, MissCause.CORRUPT), (0, HIT)])
    assert transfer.statuses.result(0) == [MissCause.CORRUPT, ABSENT, HIT]
    transfer.expire(TIMEOUT)
    assert not transfer.released.done()
    transfer.job_done()
    transfer.released.result(0)
    assert not transfer.statuses.cancel()
