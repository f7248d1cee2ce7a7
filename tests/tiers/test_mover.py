"""The order of copies, on a CPU's threads and on streams that write down what is launched."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from vllm_mimo.native.blocks import BlockView
from vllm_mimo.tiers.copies import StreamCopies, ThreadCopies
from vllm_mimo.tiers.mover import TierMover
from vllm_mimo.tiers.moves import Copies, TierMoves, TierReport
from vllm_mimo.tiers.regions import LayerRegion, TierRegions

LAYERS = ("f0", "w1", "f2")


def view(buffer: torch.Tensor, blocks: int) -> BlockView:
    return BlockView(buffer, 0, 16, 16, blocks)


def regions() -> TierRegions:
    """Three layers of eight blocks, on the device and in host memory; block b of layer i holds
    10 i + b on the device and 100 + 10 i + b in host memory."""
    layers = []
    for i, name in enumerate(LAYERS):
        device = (10 * i + torch.arange(8)).repeat_interleave(16).to(torch.uint8)
        layers.append(
            LayerRegion(name, i % 2, view(device, 8), view((device + 100).to(torch.uint8), 8))
        )
    empty = torch.zeros(0, 0, 0, dtype=torch.uint8)
    return TierRegions(tuple(layers), (empty, empty), False)


def block(views: BlockView, index: int) -> int:
    return int(views.rows()[index][0])


class Log:
    """What was launched on which stream, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.streams = 0


class FakeStream:
    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name

    def wait_event(self, event: FakeEvent) -> None:
        self.log.lines.append(f"{self.name} waits {event.name}")

    def wait_stream(self, other: FakeStream) -> None:
        self.log.lines.append(f"{self.name} waits all of {other.name}")

    def synchronize(self) -> None:
        self.log.lines.append(f"host waits {self.name}")


class FakeEvent:
    def __init__(self, log: Log) -> None:
        self.log, self.name, self.done = log, "", False

    def record(self, stream: FakeStream) -> None:
        count = sum(line.startswith(f"{stream.name} copies") for line in self.log.lines)
        self.name = f"{stream.name}@{count}"

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.log.lines.append(f"host waits {self.name}")
        self.done = True


class FakeCuda:
    """As much of torch.cuda as `StreamCopies` uses."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.compute = FakeStream(log, "compute")
        self.current = self.compute

    def Stream(self) -> FakeStream:
        self.log.streams += 1
        return FakeStream(self.log, ("in", "out")[self.log.streams - 1])

    def Event(self) -> FakeEvent:
        return FakeEvent(self.log)

    def current_stream(self) -> FakeStream:
        return self.current

    @contextmanager
    def stream(self, stream: FakeStream) -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before


def on_streams(log: Log, layerwise: bool = True) -> TierMover:
    cuda, made = FakeCuda(log), regions()
    names = {id(r.device.storage): r.name for r in made.layers}
    names |= {id(r.host.storage): r.name for r in made.layers}

    def copy(dst: BlockView, src: BlockView, pairs: torch.Tensor) -> None:
        into = "device" if any(dst is r.device for r in made.layers) else "host"
        log.lines.append(f"{cuda.current.name} copies {names[id(dst.storage)]} to {into}")

    return TierMover(made, StreamCopies(cuda, copy), StreamCopies(cuda, copy), layerwise)


def step(mover: TierMover, log: Log | None = None) -> None:
    for name in LAYERS:
        mover.layer_load(name)
        if log is not None:
            log.lines.append(f"compute runs {name}")
        mover.layer_save(name)
    mover.end()


def test_each_layer_waits_for_its_own_load_alone() -> None:
    log = Log()
    mover = on_streams(log)
    mover.start(TierMoves(loads=Copies([(1, 1)], [(2, 2)]), load_op=1))
    step(mover, log)
    assert log.lines == [
        "in copies f0 to device",
        "in copies w1 to device",
        "in copies f2 to device",
        "compute waits in@1",
        "compute runs f0",
        "compute waits in@2",
        "compute runs w1",
        "compute waits in@3",
        "compute runs f2",
    ]


def test_whole_loads_are_waited_for_before_the_step() -> None:
    log = Log()
    mover = on_streams(log, layerwise=False)
    mover.start(TierMoves(loads=Copies([(1, 1)]), load_op=1))
    before = list(log.lines)
    step(mover, log)
    assert before[-3:] == ["compute waits in@1", "compute waits in@1", "compute waits in@2"]
    assert not any("waits" in line for line in log.lines[len(before) :])


def test_stores_go_out_after_each_layer_and_before_the_next_step_writes() -> None:
    log = Log()
    mover = on_streams(log)
    mover.start(TierMoves(stores=Copies([(1, 1)], [(3, 1)]), store_op=1))
    step(mover, log)
    assert log.lines == [
        line
        for name in LAYERS
        for line in (
            f"compute runs {name}",
            "out waits all of compute",
            f"out copies {name} to host",
        )
    ]
    mover.start(TierMoves(loads=Copies([(1, 1)]), load_op=2))
    assert log.lines[9:12] == ["compute waits out@3", "in waits out@3", "in copies f0 to device"]


def test_rescues_come_before_the_writes_of_their_layer() -> None:
    log = Log()
    mover = on_streams(log)
    mover.start(TierMoves(rescues=Copies([(1, 1)], [(2, 2)]), store_op=1))
    step(mover, log)
    assert log.lines == [
        "in waits all of compute",
        "in copies f0 to host",
        "in copies w1 to host",
        "in copies f2 to host",
        "compute waits in@1",  # before the step writes to f0
        "compute waits in@2",  # within f0, before w1 is written
        "compute runs f0",
        "compute waits in@3",
        "compute runs w1",
        "compute runs f2",
    ]


def test_what_is_loaded_ahead_is_waited_for_in_the_next_step_alone() -> None:
    log = Log()
    mover = on_streams(log)
    mover.start(TierMoves(ahead=Copies([(1, 1)]), ahead_op=1))
    step(mover, log)
    assert not any("compute waits" in line for line in log.lines)
    del log.lines[:]
    mover.start(TierMoves())
    step(mover, log)
    assert [line for line in log.lines if "compute" in line] == [
        "compute waits in@1",
        "compute waits in@1",
        "compute runs f0",
        "compute waits in@2",
        "compute runs w1",
        "compute runs f2",
    ]


def on_threads() -> TierMover:
    return TierMover(regions(), ThreadCopies("in"), ThreadCopies("out"))


def test_a_step_moves_what_it_is_told_and_reports_it() -> None:
    mover = on_threads()
    f0, w1, f2 = mover.regions.layers
    moves = TierMoves(
        loads=Copies([(1, 5)], [(2, 6)]),
        rescues=Copies([(5, 4)], []),  # the block into which is loaded
        stores=Copies([(7, 7)], [(3, 3)]),
        load_op=1,
        store_op=2,
    )
    mover.start(moves)
    step(mover)
    mover.start(TierMoves(forward=False))
    mover.end()
    assert [block(r.device, 5) for r in (f0, f2)] == [101, 121]
    assert block(w1.device, 6) == 112
    assert [block(r.host, 4) for r in (f0, f2)] == [5, 25]
    assert [block(r.host, 7) for r in (f0, f2)] == [7, 27]
    assert block(w1.host, 3) == 13
    report = mover.report()
    assert report.done == {1: 1, 2: 1}
    assert report.figures["host_loaded_bytes_0"] == 32
    assert report.figures["host_loaded_bytes_1"] == 16
    assert report.figures["host_stored_bytes_0"] == 64
    assert not mover.report()
    mover.close()


def test_without_a_forward_all_is_done_at_the_end_of_the_step() -> None:
    mover = on_threads()
    mover.start(TierMoves(forward=False, stores=Copies([(1, 2)]), store_op=4))
    mover.end()
    assert mover.report().done == {4: 1}
    mover.close()


def test_a_copy_that_fails_stops_the_step_that_needs_it() -> None:
    mover = on_threads()
    mover.start(TierMoves(loads=Copies([(1, 99)]), load_op=1))
    with pytest.raises(RuntimeError, match="copying KV blocks failed: pair 0"):
        mover.layer_load("f0")


def test_layers_that_are_not_ours_pass() -> None:
    mover = on_threads()
    mover.start(TierMoves())
    mover.layer_load("an encoder's")
    mover.layer_save("an encoder's")
    mover.end()
    mover.close()


def test_reports_of_all_workers_add_up() -> None:
    first = TierReport({1: 1}, {1: {3}}, {"exposed_s": 0.5})
    both = first.aggregate(TierReport({1: 1, 2: 1}, {1: {4}}, {"exposed_s": 0.25, "load_s": 1.0}))
    assert both.done == {1: 2, 2: 1}
    assert both.failed == {1: {3, 4}}
    assert both.figures == {"exposed_s": 0.75, "load_s": 1.0}


def test_threads_end_with_their_queue() -> None:
    before = threading.active_count()
    mover = on_threads()
    assert threading.active_count() == before + 2
    mover.close()
    assert threading.active_count() == before
