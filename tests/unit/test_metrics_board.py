"""Counters pass from one process to another and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from vllm_mimo.metrics import board
from vllm_mimo.metrics.names import (
    COUNTERS,
    ENCODER_CACHE_HITS,
    FIGURES,
    FULL_EVICTED,
    FULL_POOL_USAGE,
    GAUGES,
)


@pytest.fixture(autouse=True)
def instance(monkeypatch, tmp_path):
    monkeypatch.setattr(board, "folder", lambda: tmp_path)
    monkeypatch.setenv(board.INSTANCE_VARIABLE, "test")


def test_a_reader_sees_what_the_writer_counts():
    path = board.board_path(3)
    assert board.read_board(path) == {}, "no board yet"
    writer = board.BoardWriter(path, ("a", "b"))
    assert board.read_board(path) == {"a": 0.0, "b": 0.0}
    writer.add("a")
    writer.add("b", 2.5)
    writer.add("a", 4)
    assert board.read_board(path) == {"a": 5.0, "b": 2.5}
    writer.set("b", 0.125)
    writer.add("b")
    assert board.read_board(path) == {"a": 5.0, "b": 1.125}
    assert path.stat().st_mode & 0o077 == 0, "for this user only"
    writer.close()
    assert not path.exists() and board.read_board(path) == {}


def write_and_wait(folder, connection):
    board.folder = lambda: folder
    writer = board.BoardWriter(board.board_path(7), ("a",))
    writer.add("a")
    connection.send(os.getpid())
    connection.recv()


def test_boards_of_killed_processes_are_removed(tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=write_and_wait, args=(tmp_path, theirs))
    process.start()
    pid = ours.recv()
    path = board.board_path(7)
    board.remove_orphans()
    assert board.read_board(path) == {"a": 1.0}, "of a living process"
    os.kill(pid, signal.SIGKILL)
    process.join()
    assert path.exists()
    board.BoardWriter(board.board_path(8), ("a",)).close()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"x" * 5000, b"{}\n" + b"\0" * 5000])
def test_other_files_are_no_boards(content):
    path = board.board_path()
    path.write_bytes(content)
    assert board.read_board(path) == {}
    board.remove_orphans()
    assert path.exists()


def test_the_exporter_shows_growth_once():
    from vllm_mimo.metrics.exporter import MimoStatLogger

    writer = board.BoardWriter(board.board_path(5), FIGURES)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(_api_process_rank=0),
        model_config=SimpleNamespace(served_model_name="tiny"),
    )
    logger = MimoStatLogger(config, 5)
    logger.log_engine_initialized()

    def shown():
        return REGISTRY.get_sample_value(
            f"vllm_mimo:{ENCODER_CACHE_HITS}_total", {"model_name": "tiny", "engine": "5"}
        )

    assert shown() == 0
    writer.add(ENCODER_CACHE_HITS, 2)
    logger.record(None, None)
    logger.record(None, None)
    assert shown() == 2
    config.parallel_config._api_process_rank = 1
    MimoStatLogger(config, 5).record(None, None)
    assert shown() == 2, "one of several API processes counts"
    writer.close()


def shown(name: str, engine: int) -> float | None:
    return REGISTRY.get_sample_value(
        f"vllm_mimo:{name}", {"model_name": "tiny", "engine": str(engine)}
    )


def test_the_exporter_shows_gauges_as_they_stand_and_counters_as_totals():
    from vllm_mimo.metrics.exporter import MimoStatLogger

    writer = board.BoardWriter(board.board_path(6), FIGURES)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(_api_process_rank=-1),
        model_config=SimpleNamespace(served_model_name=["tiny", "alias"]),
    )
    logger = MimoStatLogger(config, 6)
    logger.log_engine_initialized()
    for name in FIGURES:
        assert shown(name if name in GAUGES else f"{name}_total", 6) == 0, name
    for usage, evicted in ((0.75, 10), (0.25, 10), (0.5, 12)):
        writer.set(FULL_POOL_USAGE, usage)
        writer.set(FULL_EVICTED, evicted)
        logger.record(None, None)
        assert shown(FULL_POOL_USAGE, 6) == usage, "falls as well as rises"
        assert shown(f"{FULL_EVICTED}_total", 6) == evicted
    writer.close()


def test_a_figure_is_a_counter_or_a_gauge_and_says_what_it_is():
    assert not COUNTERS.keys() & GAUGES.keys()
    assert sorted(FIGURES) == sorted([*COUNTERS, *GAUGES])
    for text in (*COUNTERS.values(), *GAUGES.values()):
        assert text.endswith(".") and text[0].isupper()


def test_all_writers_of_an_engine_share_its_board(monkeypatch):
    monkeypatch.setattr(board, "_boards", {})
    engines = [
        SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=i)) for i in (0, 1)
    ]
    first, second = map(board.engine_board, engines)
    assert board.engine_board(engines[0]) is first is not second
    first.set(FULL_POOL_USAGE, 0.5)
    assert board.read_board(board.board_path(0))[FULL_POOL_USAGE] == 0.5
    assert board.read_board(board.board_path(1))[FULL_POOL_USAGE] == 0
    for writer in (first, second):
        writer.close()
