"""Exact output while the KV cache is too small: eviction, preemption, aborted requests."""

from __future__ import annotations

import random
from typing import Any

from tests.engine import Engine
from tests.exactness.oracle import check_greedy, transformers_model
from vllm_mimo.tiny.checkpoints import trained_folder

BLOCKS = 40
"""KV blocks for eight running requests that would like to have about sixty."""
WRITTEN = 96


def conversations(count: int, seed: int) -> list[list[int]]:
    """Prompts of 150 to 900 tokens, of which pairs share a long beginning."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for i in range(count):
        shared = prompts[i - 1][: rng.randint(100, 600)] if i % 2 else []
        prompts.append([*shared, *rng.choices(range(2000), k=rng.randint(150, 300))])
    return prompts


def preemptions(llm: Any) -> int:
    """How often the scheduler has taken a running request's blocks away."""
    return sum(int(m.value) for m in llm.get_metrics() if m.name == "vllm:num_preemptions")


def generate_with_aborts(
    llm: Any, prompts: list[list[int]], written: int, abort_every: int
) -> dict[int, tuple[int, ...]]:
    """Outputs of the requests that were left alone; every nth is aborted in the middle."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=written)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"kept-{i}", {"prompt_token_ids": prompt}, sampling)
    doomed = {f"kept-{i}" for i in range(0, len(prompts), abort_every)}
    outputs: dict[int, tuple[int, ...]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens = tuple(output.outputs[0].token_ids)
            if output.request_id in doomed and len(tokens) > written // 4:
                engine.abort_request([output.request_id])
                doomed.discard(output.request_id)
            elif output.finished:
                outputs[int(output.request_id.split("-")[1])] = tokens
    return outputs


def test_output_is_exact_under_eviction_preemption_and_aborts():
    prompts = conversations(16, seed=3)
    with Engine(
        trained_folder(),
        num_gpu_blocks_override=BLOCKS,
        max_model_len=1024,
        max_num_batched_tokens=256,
    ) as engine:
        outputs = [o.tokens for o in engine.generate(prompts, WRITTEN)]
        assert engine.run(preemptions) > 0, "the cache was large enough: nothing was tested"
        kept = engine.run(generate_with_aborts, prompts, WRITTEN, 3)
        again = [o.tokens for o in engine.generate(prompts, WRITTEN)]
    assert len(kept) == len([i for i in range(16) if i % 3])
    assert all(outputs[i] == tokens for i, tokens in kept.items())
    assert outputs == again
    check_greedy(transformers_model(trained_folder()), prompts, outputs)
