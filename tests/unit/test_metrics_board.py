"""Counters pass from one process to another and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from vllm_mimo.metrics import board
from vllm_mimo.metrics.names import COUNTERS, ENCODER_CACHE_HITS


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

    writer = board.BoardWriter(board.board_path(5), tuple(COUNTERS))
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
