"""The seam in both model runners: which slots a step does not write."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_mimo.worker.parts import PAD_SLOT, StepPart
from vllm_mimo.worker.runner import V1Seam, V2Seam, add_seam
from vllm_mimo.worker.worker import WorkerSeam

from .runners import PADDING, Runner, V1Runner, V2Runner, one_pool, step, two_pools

NEVER = [PAD_SLOT]


def positions(start: int, end: int, row: int = 0) -> list[int]:
    return [1000 * row + i for i in range(start, end)]


@pytest.fixture(params=[V1Runner, V2Runner])
def runner(request) -> Runner:
    made = request.param()
    add_seam(made)
    made.initialize_kv_cache(two_pools())
    return made


def test_a_step_without_guarded_requests_is_vllms(runner) -> None:
    for starts in (None, {}, {"other": 100}):
        runner.computed = {}
        full, window = runner.execute_model(step(starts, a=5, b=2))
        assert full == window == positions(0, 5) + positions(0, 2, 1) + NEVER * PADDING


def test_below_the_write_start_only_swa_layers_write(runner) -> None:
    runner.computed = {"a": 10}
    full, window = runner.execute_model(step({"a": 14}, a=6))
    assert full == NEVER * 4 + positions(14, 16) + NEVER * PADDING
    assert window == positions(10, 16) + NEVER * PADDING


@pytest.mark.parametrize(("write_start", "guarded"), [(9, 0), (10, 0), (11, 1), (16, 6), (99, 6)])
def test_at_the_edges(runner, write_start: int, guarded: int) -> None:
    runner.computed = {"a": 10}
    full, _ = runner.execute_model(step({"a": write_start}, a=6))
    assert full == NEVER * guarded + positions(10 + guarded, 16) + NEVER * PADDING


def test_each_chunk_is_guarded_up_to_the_same_position(runner) -> None:
    """A replay of several chunks: the scheduler repeats the position with each."""
    runner.computed = {"a": 8}
    written = []
    for tokens in (4, 4, 4, 1):
        full, window = runner.execute_model(step({"a": 15}, a=tokens))
        assert PAD_SLOT not in window[:tokens]
        written += [slot for slot in full[:tokens] if slot != PAD_SLOT]
    assert written == positions(15, 21)


def test_requests_are_guarded_one_by_one_wherever_they_are_in_the_batch(runner) -> None:
    runner.computed = {"a": 3, "b": 20, "c": 8, "d": 0}
    runner.order = ["c", "a", "d", "b"]
    full, window = runner.execute_model(step({"b": 22, "c": 100}, a=1, b=4, c=3, d=2))
    assert window == (
        positions(8, 11) + positions(3, 4, 1) + positions(0, 2, 2) + positions(20, 24, 3)
        + NEVER * PADDING
    )  # fmt: skip
    assert full == (
        NEVER * 3 + positions(3, 4, 1) + positions(0, 2, 2) + NEVER * 2 + positions(22, 24, 3)
        + NEVER * PADDING
    )  # fmt: skip


def test_the_next_step_starts_afresh(runner) -> None:
    runner.execute_model(step({"a": 100}, a=4))
    for starts in ({}, None):
        first = runner.computed["a"]
        full, _ = runner.execute_model(step(starts, a=4))
        assert full == positions(first, first + 4) + NEVER * PADDING


def test_dummy_runs_are_left_alone(runner) -> None:
    """They have no requests of the scheduler's, but may reuse a batch's rows."""
    runner.execute_model(step({"a": 100}, a=4))
    full, window = runner._dummy_run(["a"], [4])
    assert full == window == positions(4, 8) + NEVER * PADDING


def test_a_step_that_fails_ends_too(runner) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.execute_model(step({"a": 100}, a=4, fails=1))
    full, _ = runner._dummy_run(["a"], [4])
    assert full == positions(0, 4) + NEVER * PADDING


@pytest.mark.parametrize("kind", [V1Runner, V2Runner])
def test_one_pool_has_no_parts(kind) -> None:
    runner = kind()
    add_seam(runner)
    full, _ = runner.execute_model(step({"a": 100}, a=4))
    assert full == positions(0, 4) + NEVER * PADDING, "before there is a KV cache"
    runner.initialize_kv_cache(one_pool(), is_profiling=True)
    full, _ = runner.execute_model(step({"a": 100}, a=4))
    assert full == positions(4, 8) + NEVER * PADDING
    runner.initialize_kv_cache(two_pools())
    full, _ = runner.execute_model(step({"a": 100}, a=4))
    assert full == NEVER * (4 + PADDING), "profiling's one pool is forgotten"


def test_v1_without_a_kv_cache_has_no_slots() -> None:
    runner = V1Runner()
    add_seam(runner)
    runner.initialize_kv_cache(two_pools())
    runner.mimo_stepping = True
    assert runner._get_slot_mappings(1, 1, 1) == (None, None)


@pytest.mark.parametrize(("kind", "seam"), [(V1Runner, V1Seam), (V2Runner, V2Seam)])
def test_a_runner_keeps_its_class_state_and_arguments(kind, seam) -> None:
    runner = kind()
    runner.computed = {"a": 3}
    add_seam(runner)
    once = type(runner)
    add_seam(runner)
    assert type(runner) is once, "added once"
    assert isinstance(runner, kind) and isinstance(runner, seam)
    assert once.__name__ == f"Mimo{kind.__name__}"
    assert type(kind()) is kind, "other runners of the class are as they were"
    assert runner.computed == {"a": 3}
    assert runner.initialize_kv_cache(two_pools(), is_profiling=True) == "initialized"
    assert runner.seen["profiling"] is True
    runner.execute_model(step(None, a=1), intermediate_tensors="hidden")
    assert runner.seen["intermediate"] == "hidden"


def test_seam_and_parts_are_for_vllms_runners() -> None:
    """The stand-ins have vLLM's methods; which seam a runner gets is told by `prepare_attn`."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    assert hasattr(GPUModelRunner, "prepare_attn")
    assert not hasattr(CPUModelRunner, "prepare_attn")
    for kind, like in ((CPUModelRunner, V1Runner), (GPUModelRunner, V2Runner)):
        for name in ("initialize_kv_cache", "execute_model"):
            assert hasattr(kind, name) and hasattr(like, name)


def test_a_part_sees_each_step_before_it_is_prepared(runner) -> None:
    seen = []

    class Watch(StepPart):
        def before_step(self, output) -> None:
            seen.append(("step", dict(output.num_scheduled_tokens)))

        def slot_mappings(self, slots, request_ids, first_tokens, query_starts) -> None:
            rows = range(len(request_ids))
            seen.append((list(request_ids), [int(first_tokens[i]) for i in rows]))
            assert [int(query_starts[i]) for i in (*rows, len(rows))] == [0, 2, 3]
            assert len(slots) == 2

    runner.mimo_parts.append(Watch(two_pools()))
    runner.computed = {"a": 4, "b": 9}
    runner.execute_model(step({}, a=2, b=1))
    assert seen == [("step", {"a": 2, "b": 1}), (["a", "b"], [4, 9])]


def test_a_worker_adds_the_seam_once_it_has_a_runner() -> None:
    class Worker:
        def init_device(self, *args) -> None:
            self.model_runner = V1Runner()
            self.args = args

    class Ours(WorkerSeam, Worker):
        pass

    worker = Ours()
    worker.init_device("cpu")
    assert worker.args == ("cpu",)
    assert isinstance(worker.model_runner, V1Seam)
    plain = SimpleNamespace()
    Worker.init_device(plain)
    assert type(plain.model_runner) is V1Runner
