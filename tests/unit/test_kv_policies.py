"""Scheduling policies that look at a request's tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.plugin import register
from vllm_mimo.scheduling import endings, junctions
from vllm_mimo.scheduling.junctions import special_token
from vllm_mimo.tiny.checkpoints import trained_folder

TURN, CALL = 7, 9


class Manager(MimoKVCacheManager):
    """Only what the policies ask of it."""

    def __init__(self) -> None:
        self.endings: list[bool | None] = []

    def mark_finished(self, request: Any, ended_in_tool_call: bool | None) -> None:
        self.endings.append(ended_in_tool_call)


def scheduler(**model: Any) -> Any:
    values = {"skip_tokenizer_init": True, **model}
    config = SimpleNamespace(model_config=SimpleNamespace(**values))
    return SimpleNamespace(vllm_config=config, kv_cache_manager=Manager())


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([TURN, 1, 2, 3, TURN, 4, TURN, 5], [4]),
        ([TURN, 1, 2, 3], []),
        ([1, TURN, 2, TURN], []),
        ([], []),
        (None, []),
    ],
)
def test_the_end_of_the_system_turn(prompt: list[int] | None, expected: list[int]) -> None:
    policy = junctions.Junctions(scheduler())
    policy.turn_start = TURN
    assert policy.positions(SimpleNamespace(prompt_token_ids=prompt)) == expected  # type: ignore


def test_without_a_tokenizer_no_junction_is_foreseen() -> None:
    made = scheduler()
    assert junctions.Junctions(made).turn_start is None


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (RequestStatus.FINISHED_STOPPED, [1, CALL, 2], [True]),
        (RequestStatus.FINISHED_STOPPED, [1, 2], [False]),
        (RequestStatus.FINISHED_LENGTH_CAPPED, [1, CALL], []),
        (RequestStatus.FINISHED_ABORTED, [1], []),
    ],
)
def test_how_an_output_ended(
    status: RequestStatus, output: list[int], expected: list[bool]
) -> None:
    made = scheduler()
    policy = endings.Endings(made)
    policy.tool_call = CALL
    policy.request_ends(SimpleNamespace(status=status, _output_token_ids=output))  # type: ignore
    assert made.kv_cache_manager.endings == expected


def test_the_tiny_model_has_both_tokens() -> None:
    """As MiMo's tokenizer has: without them neither policy would do anything."""
    from vllm.config import ModelConfig

    register()
    model = ModelConfig(model=str(trained_folder()), dtype="float32")
    made = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model))
    for token in (junctions.TURN_START, endings.TOOL_CALL):
        assert isinstance(special_token(made, token), int)  # type: ignore[arg-type]
    assert special_token(made, "no such token") is None  # type: ignore[arg-type]
