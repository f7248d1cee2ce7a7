"""Greedy float32 output of the real engine equals the oracle's, for every layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine import Engine
from tests.exactness.oracle import check_greedy, reference, transformers_model
from vllm_mimo.tiny.checkpoints import write_random

LENGTHS = (1, 2, 31, 127, 128, 129, 255, 256, 257, 700, 1500, 2500, 4000)
VOCAB = 2000


def prompts(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random prompts; each longer one shares its first third with the one before."""
    generator = torch.Generator().manual_seed(seed)
    made: list[list[int]] = []
    for length in lengths:
        shared = made[-1][: length // 3] if made else []
        rest = torch.randint(0, VOCAB, (length - len(shared),), generator=generator)
        made.append([*shared, *rest.tolist()])
    return made


def test_the_reference_equals_transformers(tmp_path: Path):
    """So that the reference may stand for Pro, whose geometry transformers' class cannot have."""
    for layout in ("flash", "v2.5"):
        write_random(tmp_path / layout, layout, seed=5)
        ours, theirs = reference(tmp_path / layout), transformers_model(tmp_path / layout)
        for prompt in prompts(5, (1, 128, 129, 900)):
            assert (ours(prompt) - theirs(prompt)).abs().max() < 2e-4


@pytest.mark.parametrize(
    ("layout", "fp8", "caching"),
    [("v2.5", False, True), ("flash", False, False), ("pro", False, True), ("v2.5", True, True)],
    ids=("v2.5", "flash-no-caching", "pro", "v2.5-fp8"),
)
def test_greedy_output_is_exact(layout: str, fp8: bool, caching: bool, tmp_path: Path):
    """Prompts of 1 to 4,000 tokens, eight at once, prefill in chunks of 256, each sent twice."""
    write_random(tmp_path, layout, fp8, seed=7)
    # The class of transformers knows neither Pro's geometry nor FP8.
    exact = transformers_model if layout != "pro" and not fp8 else reference
    sent = prompts(7)
    with Engine(tmp_path, max_num_batched_tokens=256, enable_prefix_caching=caching) as engine:
        first = engine.generate(sent)
        again = engine.generate(sent)
    assert [o.tokens for o in first] == [o.tokens for o in again]
    cached = [o.cached for o in again]
    if caching:
        assert all(c >= n - 512 for c, n in zip(cached, LENGTHS, strict=True) if n > 512), cached
    else:
        assert cached == [0] * len(sent)
    check_greedy(exact(tmp_path), sent, [o.tokens for o in first])


@pytest.mark.parametrize("fp8", (False, True), ids=("bf16", "fp8"))
def test_bfloat16_stays_near_the_reference(fp8: bool, tmp_path: Path):
    """Not exact, but the tokens are the best or nearly so. FP8 runs in vLLM's AMX kernel here."""
    write_random(tmp_path, "v2.5", fp8, seed=8)
    sent = prompts(8, (1, 128, 300, 900))
    with Engine(tmp_path, dtype="bfloat16", max_num_batched_tokens=256) as engine:
        outputs = engine.generate(sent)
    exact, behind = reference(tmp_path), []
    for prompt, output in zip(sent, outputs, strict=True):
        logits = exact([*prompt, *output.tokens])[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output.tokens)[:, None])[:, 0]
        behind.append((logits.max(-1).values - chosen) / logits.std(-1))
    gap = torch.cat(behind)
    assert (gap == 0).float().mean() > 0.8, gap
    assert gap.max() < 0.25, gap


def test_two_ranks_give_the_output_of_one(tmp_path: Path):
    """Real tensor parallelism over two processes, block FP8 weights de-quantised for the CPU."""
    write_random(tmp_path, "v2.5", fp8=True, seed=9)
    sent = prompts(9, (1, 129, 300, 900))
    with Engine(
        tmp_path,
        environ={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        tensor_parallel_size=2,
        max_num_batched_tokens=256,
    ) as engine:
        outputs = engine.generate(sent)
    check_greedy(reference(tmp_path), sent, [o.tokens for o in outputs])
