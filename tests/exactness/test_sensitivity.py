"""The exactness tests would notice: one wrong KV slot or block changes what the model writes.

On the trained tiny model, copying a passage that stands far back in the prompt. Noise of the
cache's own size goes into one token's K and V, or the block table names another block.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import pytest

from tests.engine import Engine
from tests.exactness.corruption import FULL, SWA, Break, Inside, generate_broken
from tests.exactness.oracle import check_greedy, transformers_model
from vllm_mimo.tiny.checkpoints import trained_folder

REQUESTS = 20
PASSAGE, SHOWN, WRITTEN, AFTER = 320, 48, 48, 6
"""Tokens of the passage, of its second showing in the prompt, of the output, before the break."""
POOL = 200
"""Different tokens in a passage: most return, so the model must look back to find its place."""


def passages() -> list[list[int]]:
    """Prompts that end in the middle of a passage's second showing."""
    rng = random.Random(11)
    out = []
    for _ in range(REQUESTS):
        passage = rng.choices(rng.sample(range(2000), POOL), k=PASSAGE)
        out.append([*passage, *passage[:SHOWN]])
    return out


def _overwrite(kind: str, back: int | None, at: int | None, inside: Inside, request: str, n: int):
    position = n - back if back is not None else at
    inside.overwrite_slot(request, kind, position, seed=position)


def _swap(kind: str, back: int | None, at: int | None, inside: Inside, request: str, n: int):
    inside.swap_block(request, kind, n - back if back is not None else at)


def breaks(kind: str, how: str) -> list[Break | None]:
    """One break per request, at places drawn from a fixed seed."""
    rng = random.Random(5)
    act = _overwrite if how == "slot" else _swap
    out: list[Break | None] = []
    for _ in range(REQUESTS):
        if kind == SWA:
            back, at = rng.randint(1, 3), None
        else:
            # A token of the passage that is copied soon, before so small a model makes a slip.
            back, at = None, SHOWN + rng.randint(AFTER + 3, AFTER + 8)
        out.append(functools.partial(act, kind, back, at))
    return out


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    # Without prefix caching: a block that one run broke must not come back in the next.
    with Engine(
        trained_folder(), max_num_batched_tokens=512, enable_prefix_caching=False
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def intact(engine: Engine) -> list[tuple[int, ...]]:
    """Outputs with nothing broken, exact against transformers' class."""
    outputs = engine.run(generate_broken, passages(), WRITTEN, AFTER, [None] * REQUESTS)
    check_greedy(transformers_model(trained_folder()), passages(), outputs)
    return outputs


def changed(engine: Engine, intact: list, broken: list[Break | None]) -> int:
    outputs = engine.run(generate_broken, passages(), WRITTEN, AFTER, broken)
    return sum(a != b for a, b in zip(intact, outputs, strict=True))


@pytest.mark.parametrize("how", ("slot", "block"))
@pytest.mark.parametrize("kind", (FULL, SWA))
def test_one_wrong_slot_or_block_changes_nine_outputs_in_ten(
    engine: Engine, intact: list, kind: str, how: str
):
    assert changed(engine, intact, breaks(kind, how)) >= 0.9 * REQUESTS


def test_a_slot_outside_the_window_changes_nothing(engine: Engine, intact: list):
    """So it is the wrong value that counts above, not the interference."""
    outside = [functools.partial(_overwrite, SWA, 129 + i, None) for i in range(REQUESTS)]
    assert changed(engine, intact, outside) == 0
