"""Host memory gives the output of an engine without a cache, while everything happens to it."""

from __future__ import annotations

import pytest

from tests.engine import Engine
from tests.exactness.oracle import transformers_model
from tests.exactness.sessions import play, workload
from tests.exactness.test_two_pools import check_ties, differing
from tests.tiers.figures import tier_figures
from vllm_mimo.tiny.checkpoints import trained_folder

CASES = {
    # The device holds little, host memory all.
    "tight device": (
        {"num_gpu_blocks_override": 60, "max_model_len": 2048},
        {"swa_pool_blocks": 24, "host_gib": 0.2},
        workload(sessions=44, turns=7, seed=17, longest=1900),
        (
            "loaded_full",
            "loaded_window",
            "ahead",
            "rescued",
            "vllm:num_preemptions",
            "aborted",
        ),
    ),
    # Host memory is small too, all layers are loaded before a step, and tails are rare.
    "tight tiers": (
        {"num_gpu_blocks_override": 100, "max_model_len": 3072},
        {
            "swa_pool_blocks": 24,
            "host_gib": 0.04,
            "host_swa_fraction": 0.05,
            "tier_layerwise": False,
            "tail_interval": 0,
        },
        workload(sessions=44, turns=7, seed=18, longest=2900, long_share=0.6),
        (
            "loaded_full",
            "backfilled",
            "host_full_evicted",
            "host_window_evicted",
            "replays",
            "aborted_mid_prefill",
        ),
    ),
}


@pytest.fixture(scope="module")
def uncached():
    """vLLM's own pool and no cache: the run to compare with."""
    with Engine(
        trained_folder(),
        max_model_len=3072,
        max_num_batched_tokens=3072,
        enable_prefix_caching=False,
        additional_config={"mimo": {"two_pools": False}},
    ) as engine:
        yield engine


@pytest.mark.parametrize("case", CASES)
def test_exact_under_pressure(case: str, uncached: Engine):
    limits, keys, sessions, expected = CASES[case]
    with Engine(
        trained_folder(), max_num_batched_tokens=192, additional_config={"mimo": keys}, **limits
    ) as engine:
        played = engine.run(play, sessions, 1, 8, 0.01)
        played.figures |= engine.run(tier_figures)
    print(case, played.figures)
    assert len(played.prompts) >= 120
    for what in expected:
        assert played.figures[what] > 0, f"{what}: did not happen, so it was not tested"
    assert played.figures["held_full"] == played.figures["held_swa"] == 0
    wrong = differing(played, uncached)
    assert len(wrong) <= 0.001 * len(played.prompts), wrong
    check_ties(transformers_model(trained_folder()), played, wrong)
