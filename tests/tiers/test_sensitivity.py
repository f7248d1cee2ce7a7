"""The exactness tests would notice: one wrong slot in host memory, or one wrong block id in a load,
changes what the model writes.

Second turns whose KV is in host memory only, copying a passage far back in the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.engine import Engine
from tests.exactness.oracle import check_greedy, transformers_model
from tests.exactness.test_sensitivity import PASSAGE, REQUESTS, SHOWN, WRITTEN, passages
from tests.tiers.breaking import BLOCK, GROUPS, SLOT, second_turns
from vllm_mimo.tiny.checkpoints import trained_folder

RESUMED = 384
"""Where the second turn resumes: the last token of its prompt is the only one that it computes."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        trained_folder(),
        max_num_batched_tokens=512,
        additional_config={"mimo": {"host_gib": 0.2, "tier_ahead": False}},
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    first = engine.generate(passages(), WRITTEN)
    return [
        [*prompt, *output.tokens][: RESUMED + 1]
        for prompt, output in zip(passages(), first, strict=True)
    ]


@pytest.fixture(scope="module")
def intact(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    outputs, cached = engine.run(second_turns, prompts, WRITTEN, None, [0] * REQUESTS)
    assert cached == [RESUMED] * REQUESTS, "not all of it came from host memory"
    check_greedy(transformers_model(trained_folder()), prompts, outputs)
    return outputs


def changed(engine: Engine, prompts: list, intact: list, how: str, kind: str, seed: int) -> int:
    rng = random.Random(seed)
    if kind == "SWA":
        positions = [RESUMED - rng.randint(1, 3) for _ in range(REQUESTS)]
    else:  # a token of the passage that is copied soon
        soon = RESUMED + 1 - PASSAGE
        positions = [soon + rng.randint(3, 8) for _ in range(REQUESTS)]
    outputs, _ = engine.run(second_turns, prompts, WRITTEN, (how, GROUPS[kind]), positions)
    return sum(a != b for a, b in zip(intact, outputs, strict=True))


@pytest.mark.parametrize("how", [SLOT, BLOCK])
@pytest.mark.parametrize("kind", list(GROUPS))
def test_one_wrong_slot_or_block_changes_nine_outputs_in_ten(
    engine: Engine, prompts: list, intact: list, how: str, kind: str
) -> None:
    assert SHOWN < RESUMED - PASSAGE
    assert changed(engine, prompts, intact, how, kind, seed=5) >= 0.9 * REQUESTS
