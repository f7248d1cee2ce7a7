"""What the scheduler says about a step reaches the workers of every executor."""

from __future__ import annotations

import copy
import pickle
import threading
from types import SimpleNamespace

import cloudpickle
import pytest

from vllm_mimo.scheduling.handover import WRITE_STARTS
from vllm_mimo.scheduling.write_guard import WriteGuard

from .runners import step

STARTS = {"a": 4096, "b": 64}


def through_pickle_with_buffers(output):
    """As vLLM's message queue writes it."""
    buffers: list = []
    data = pickle.dumps(output, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers)


def through_the_message_queue(output):
    """vLLM's own queue of shared memory, between two threads."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    writer = MessageQueue(n_reader=1, n_local_reader=1, max_chunk_bytes=2**20, max_chunks=2)
    received = []

    def read() -> None:
        reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
        reader.wait_until_ready()
        received.append(reader.dequeue(timeout=30))

    thread = threading.Thread(target=read)
    thread.start()
    writer.wait_until_ready()
    writer.enqueue(("execute_model", (output,), {}))
    thread.join(timeout=60)
    return received[0][1][0]


@pytest.mark.parametrize(
    "through",
    [
        through_pickle_with_buffers,
        lambda output: pickle.loads(cloudpickle.dumps(output)),
        copy.copy,
        copy.deepcopy,
        through_the_message_queue,
    ],
    ids=["pickle", "cloudpickle", "copy", "deepcopy", "message queue"],
)
def test_the_attribute_stays_on_vllms_output(through) -> None:
    arrived = through(step(STARTS, a=7))
    assert getattr(arrived, WRITE_STARTS) == STARTS
    assert arrived.num_scheduled_tokens == {"a": 7}


def test_an_empty_output_of_vllm_has_none() -> None:
    from vllm.v1.core.sched.output import SchedulerOutput

    assert not hasattr(SchedulerOutput.make_empty(), WRITE_STARTS)


class Manager:
    """Answers for requests by name."""

    def __init__(self, starts: dict[str, int]) -> None:
        self.starts = starts

    def write_start(self, request_id: str) -> int:
        return self.starts.get(request_id, 0)


@pytest.fixture
def guard(monkeypatch):
    """A guard over requests that have computed what `computed` says, this step included."""
    from vllm_mimo.scheduling import write_guard

    monkeypatch.setattr(write_guard, "MimoKVCacheManager", Manager)

    def make(starts: dict[str, int], **computed: int) -> WriteGuard:
        requests = {name: SimpleNamespace(num_computed_tokens=n) for name, n in computed.items()}
        return WriteGuard(SimpleNamespace(kv_cache_manager=Manager(starts), requests=requests))

    return make


@pytest.mark.parametrize(
    ("computed", "scheduled", "named"),
    [
        (10, 10, True),  # computes tokens 0 to 9
        (110, 10, False),  # computes 100 to 109
        (109, 10, True),  # computes 99 to 108: one of them is cached
        (300, 300, True),
        (301, 1, False),
    ],
)
def test_requests_are_named_while_they_compute_cached_tokens(
    guard, computed: int, scheduled: int, named: bool
) -> None:
    output = step(None, a=scheduled)
    guard({"a": 100}, a=computed).scheduled(output)
    assert getattr(output, WRITE_STARTS) == ({"a": 100} if named else {})


def test_requests_without_a_cached_prefix_are_left_out(guard) -> None:
    output = step(None, a=5, b=3)
    guard({"b": 64}, a=5, b=3, finished=9).scheduled(output)
    assert getattr(output, WRITE_STARTS) == {"b": 64}
    empty = step(None)
    guard({"b": 64}).scheduled(empty)
    assert getattr(empty, WRITE_STARTS) == {}
