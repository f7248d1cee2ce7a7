"""The planner's pools are those that the plugin makes inside an engine, block for block."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.paths import real_config
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.planner.pools import plan_pools
from vllm_mimo.planner.serving import Serving
from vllm_mimo.planner.upstream import layer_specs, stand_in

BUDGET = 70 * 10**9


@pytest.mark.parametrize("name", ("MiMo-V2.5", "MiMo-V2.5-Pro"))
@pytest.mark.parametrize("tp, fraction", [(8, None), (4, None), (8, 0.1)])
def test_pools_of_the_plan_and_of_the_engine(name: str, tp: int, fraction: float | None):
    from vllm_mimo.kv.planning import two_pool_configs

    geometry = TextGeometry.from_config(real_config(name))
    serving = Serving(1 << 20, 8192, 1024, window_fraction=fraction)
    config = stand_in(serving, serving.max_model_len, serving.in_flight_tokens)
    config.num_prefill_lookahead_tokens = 0
    config.additional_config = {"mimo": {"swa_pool_fraction": fraction}}
    config.model_config.original_max_model_len = None
    config.model_config.hf_config = SimpleNamespace()
    config.scheduler_config.max_num_seqs = serving.max_num_seqs
    config.scheduler_config.max_num_batched_tokens = serving.batched_tokens
    config.parallel_config.tensor_parallel_size = tp
    (made,) = two_pool_configs(config, [layer_specs(geometry, tp, serving)], [BUDGET])
    planned = plan_pools(geometry, tp, serving, [BUDGET])
    assert (planned.full_blocks, planned.window_blocks) == (made.num_blocks, made.window_blocks)
