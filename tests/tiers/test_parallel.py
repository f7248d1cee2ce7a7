"""Tiers with several samples of one prompt, and under tensor parallelism, on the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine import Engine
from tests.exactness.oracle import check_greedy, transformers_model
from tests.exactness.test_sensitivity import passages
from tests.tiers.figures import drain, tier_figures
from tests.tiers.test_l3 import empty_upper_tiers
from vllm_mimo.tiny.checkpoints import trained_folder

WRITTEN = 12
SAMPLES = 4
BLOCK = 64


def empty_device(llm: Any) -> None:
    """Leave the prefixes in host memory alone."""
    drain(llm)
    assert llm.llm_engine.engine_core.engine_core.scheduler.reset_prefix_cache()


def samples(llm: Any, prompts: Sequence[Sequence[int]], seed: int) -> list[list[tuple[int, ...]]]:
    """Of each prompt `SAMPLES` continuations, drawn with seeds of their own."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        n=SAMPLES,
        temperature=2.0,
        seed=seed,
        ignore_eos=True,
        detokenize=False,
        max_tokens=WRITTEN,
    )
    requests = [{"prompt_token_ids": list(p)} for p in prompts]
    found = llm.generate(requests, sampling, use_tqdm=False)
    return [[tuple(one.token_ids) for one in output.outputs] for output in found]


def test_four_samples_of_a_prompt_from_host_memory_are_those_without_a_cache() -> None:
    prompts = passages()
    with Engine(
        trained_folder(),
        enable_prefix_caching=False,
        additional_config={"mimo": {"two_pools": False}},
    ) as plain:
        expected = plain.run(samples, prompts, 3)
    with Engine(
        trained_folder(),
        max_num_seqs=4,
        max_num_batched_tokens=2048,  # vLLM's CPU runner cannot draw with a seed after a part
        max_model_len=1024,
        num_gpu_blocks_override=40,
        additional_config={"mimo": {"swa_pool_blocks": 32, "host_gib": 0.2}},
    ) as engine:
        cold = engine.run(samples, prompts, 3)
        engine.run(empty_device)
        before = engine.run(tier_figures)
        again = engine.run(samples, prompts, 3)
        after = engine.run(tier_figures)
    assert len({one for group in expected for one in group}) > 2 * len(prompts), "one continuation"
    assert cold == expected
    assert again == expected
    assert after["loaded_requests"] - before["loaded_requests"] >= len(prompts)


@pytest.mark.parametrize("tier", ["host", "l3"])
def test_two_ranks_keep_and_find_their_own_parts(tier: str, tmp_path: Path) -> None:
    prompts = passages()
    keys: dict[str, Any] = {"host_gib": 0.2}
    if tier == "l3":
        keys["l3"] = {"path": str(tmp_path / "l3"), "gib": 0.5}
    with Engine(
        trained_folder(),
        environ={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        tensor_parallel_size=2,
        max_num_batched_tokens=192,
        max_model_len=1024,
        additional_config={"mimo": keys},
    ) as engine:
        cold = engine.generate(prompts, WRITTEN)
        engine.run(empty_device if tier == "host" else empty_upper_tiers)
        warm = engine.generate(prompts, WRITTEN)
        figures = engine.run(tier_figures)
    check_greedy(transformers_model(trained_folder()), prompts, [o.tokens for o in cold])
    assert [o.tokens for o in warm] == [o.tokens for o in cold]
    assert figures["loaded_window"] > 0
    whole = [(len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts]
    found = sum(o.cached == most for o, most in zip(warm, whole, strict=True))
    # Of L3 some may come too late, or be quicker to compute.
    assert found == len(prompts) if tier == "host" else found >= len(prompts) // 2
