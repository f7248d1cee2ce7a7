"""From layers and bytes to the two pools of every worker."""

from __future__ import annotations

import copy
import itertools
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.planning import (
    KVLayersError,
    concurrency,
    demand,
    two_pool_configs,
    two_pool_groups,
)
from vllm_mimo.kv.sizing import PoolSizeError
from vllm_mimo.kv.spec import TwoPoolConfig, has_two_pools

WINDOW = 32
COMMON = {"head_size": 6, "head_size_v": 4, "dtype": torch.bfloat16}
# Bytes of a token: heads * (6 + 4) * 2.
FULL_TOKEN, SWA_TOKEN = 20, 40


def layers(pattern: str, first: int = 0, block_size: int = 16) -> dict[str, Any]:
    """Specs of layers by name, F for full attention and S for SWA."""
    full = FullAttentionSpec(block_size=block_size, num_kv_heads=1, **COMMON)
    window = SlidingWindowSpec(
        block_size=block_size, num_kv_heads=2, sliding_window=WINDOW, **COMMON
    )
    kinds = {"F": full, "S": window}
    return {f"layers.{first + i}": kinds[kind] for i, kind in enumerate(pattern)}


def vllm_config(**more: Any) -> Any:
    """What planning reads of a VllmConfig."""
    values = {
        "mimo": {},
        "max_model_len": 256,
        "auto_fit": False,
        "layout": "LBNHC",
        "override": None,
        "in_flight": 64,
        "speculative": None,
        "lookahead": 0,
        "tp": 1,
    } | more
    layout = KVCacheLayout[values["layout"]]
    return SimpleNamespace(
        additional_config={"mimo": values["mimo"]},
        model_config=SimpleNamespace(
            max_model_len=values["max_model_len"],
            original_max_model_len=-1 if values["auto_fit"] else values["max_model_len"],
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=values["override"],
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=values["tp"], decode_context_parallel_size=1
        ),
        speculative_config=values["speculative"],
        num_prefill_lookahead_tokens=values["lookahead"],
        max_in_flight_tokens=values["in_flight"],
    )


def plan(pattern: str = "FSSFSS", budget: int = 200_000, **more: Any) -> TwoPoolConfig:
    (config,) = two_pool_configs(vllm_config(**more), [layers(pattern)], [budget])
    return config


# --- groups ------------------------------------------------------------------------------------


def test_full_layers_are_one_group_and_swa_layers_the_other() -> None:
    full, window = two_pool_groups(vllm_config(), layers("FSSFSS"))
    assert full.layer_names == ["layers.0", "layers.3"]
    assert window.layer_names == ["layers.1", "layers.2", "layers.4", "layers.5"]
    spec = window.kv_cache_spec
    assert (spec.sliding_window, spec.window_layers, spec.replay_bound) == (32, 4, 4 * 31)
    assert (spec.head_size, spec.head_size_v, spec.num_kv_heads) == (6, 4, 2)
    assert full.kv_cache_spec.page_size_bytes == 16 * FULL_TOKEN
    assert spec.page_size_bytes == 16 * SWA_TOKEN
    assert not full.is_eagle_group and not window.is_eagle_group


@pytest.mark.parametrize("drops", (True, False))
def test_drafters_are_in_the_swa_group_and_keep_tokens_below_the_window(drops: bool) -> None:
    drafter = SimpleNamespace(use_eagle_block_drop=lambda: drops)
    full, window = two_pool_groups(vllm_config(speculative=drafter, lookahead=3), layers("FS"))
    assert (full.is_eagle_group, window.is_eagle_group) == (False, drops)
    assert window.kv_cache_spec.extra_retained_tokens == 2


def other(spec: Any, **changes: Any) -> Any:
    return type(spec)(**{**{f: getattr(spec, f) for f in ("block_size", "num_kv_heads")},
                         **COMMON, **changes})  # fmt: skip


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (layers("FF"), "no SWA layer"),
        (layers("SS"), "no full-attention layer"),
        ({}, "no full-attention layer"),
        (
            {**layers("FS"), "odd": other(layers("F")["layers.0"], num_kv_heads=4)},
            "full-attention layer odd differs",
        ),
        (
            {**layers("FS"), "odd": other(layers("S")["layers.0"], sliding_window=64)},
            "SWA layer odd differs",
        ),
        (
            {
                **layers("FS"),
                "odd": ChunkedLocalAttentionSpec(
                    block_size=16, num_kv_heads=1, attention_chunk_size=64, **COMMON
                ),
            },
            "layer odd keeps ChunkedLocalAttentionSpec: no place in two pools",
        ),
    ],
)
def test_layers_that_do_not_fit_two_pools_are_named(specs: dict, message: str) -> None:
    with pytest.raises(KVLayersError, match=message):
        two_pool_groups(vllm_config(), specs)


def test_the_swa_pool_may_have_smaller_blocks() -> None:
    config = plan(mimo={"swa_block_size": 4})
    full, window = (group.kv_cache_spec for group in config.kv_cache_groups)
    assert (full.block_size, window.block_size) == (16, 4)
    assert window.page_size_bytes == 4 * SWA_TOKEN
    # 31 + 64 tokens are 24 blocks, and one for where they start.
    assert demand(vllm_config(), config.kv_cache_groups).window_blocks_per_request == 25
    with pytest.raises(PoolSizeError, match=r"'swa_block_size' is 5, which does not divide .* 16"):
        plan(mimo={"swa_block_size": 5})
    with pytest.raises(PoolSizeError, match="'swa_block_size' is 32"):
        plan(mimo={"swa_block_size": 32})


# --- sizes -------------------------------------------------------------------------------------


def test_one_worker_uses_its_bytes_for_both_pools() -> None:
    config = plan(budget=200_000)
    full_block, window_block = 2 * 16 * FULL_TOKEN, 4 * 16 * SWA_TOKEN
    used = config.num_blocks * full_block + config.window_blocks * window_block
    assert 200_000 - full_block < used <= 200_000
    assert {tensor.size for tensor in config.kv_cache_tensors} == {used}
    assert config.kv_cache_groups[WINDOW_GROUP].kv_cache_spec.pool_blocks == config.window_blocks
    assert config.window_blocks > 7, "one request: 31 + 64 tokens, where they start, a null block"
    assert config.num_blocks > 16
    assert config.prefix_cache_retention_interval == 0


def test_each_tensor_has_the_blocks_of_its_pool() -> None:
    config = plan()
    blocks = {t.layers[0]: config.num_blocks_of(t) for t in config.kv_cache_tensors}
    assert blocks == {"layers.0": config.num_blocks, "layers.1": config.window_blocks}
    assert config.num_blocks != config.window_blocks


def test_a_fraction_and_a_count_set_the_swa_pool() -> None:
    assert plan(mimo={"swa_pool_fraction": 0.5}).window_blocks == 100_000 // (4 * 16 * SWA_TOKEN)
    config = plan(mimo={"swa_pool_blocks": 11})
    assert config.window_blocks == 11
    assert config.num_blocks == (200_000 - 11 * 2560) // 640
    both = plan(mimo={"swa_pool_blocks": 11, "swa_pool_fraction": 0.9})
    assert both.window_blocks == 11, "a count goes before a share"


def test_a_number_of_blocks_that_vllm_was_given_is_the_full_pools() -> None:
    config = plan(override=20, mimo={"swa_pool_blocks": 9})
    assert (config.num_blocks, config.window_blocks) == (20, 9)
    assert config.kv_cache_tensors[0].size == 20 * 640 + 9 * 2560
    assert plan(override=20).num_blocks == 20


@pytest.mark.parametrize(
    ("more", "has", "needs"),
    [
        ({"budget": 20_000}, "20,000 bytes of KV cache give", "needs 17 and 8 (31,360 bytes)"),
        ({"budget": 0}, "0 bytes of KV cache give 0 full", "needs 17 and 8 (31,360 bytes)"),
        ({"override": 16}, "the KV cache has 16 full", "needs 17 and 8"),
        ({"mimo": {"swa_pool_blocks": 7}}, "and 7 SWA blocks of 16", "needs 17 and 8"),
        (
            {"mimo": {"swa_pool_blocks": 79}},
            "the KV cache has 0 full-attention blocks of 16 tokens and 79 SWA",
            "needs 17 and 8",
        ),
    ],
)
def test_a_pool_too_small_for_one_request_is_refused_with_both_numbers(more, has, needs) -> None:
    with pytest.raises(PoolSizeError) as caught:
        plan(**more)
    assert has in str(caught.value)
    assert needs in str(caught.value)


def test_pipeline_stages_get_the_same_counts_from_different_bytes() -> None:
    stages = [layers("FSS"), layers("SSSSSF", first=3)]
    config = vllm_config()
    first, second = two_pool_configs(config, stages, [100_000, 500_000])
    for made, own in ((first, stages[0]), (second, stages[1])):
        assert made.num_blocks == first.num_blocks
        assert made.window_blocks == first.window_blocks
        named = [name for group in made.kv_cache_groups for name in group.layer_names]
        assert sorted(named) == sorted(own)
        spec = made.kv_cache_groups[WINDOW_GROUP].kv_cache_spec
        assert spec.window_layers == 7, "a replay passes the SWA layers of all stages"
        assert spec.pool_blocks == first.window_blocks
    assert first.kv_cache_tensors[0].size <= 100_000
    assert second.kv_cache_tensors[0].size <= 500_000
    sizes = [made.kv_cache_tensors[0].size for made in (first, second)]
    assert sizes == [
        first.num_blocks * n * 320 + first.window_blocks * m * 640 for n, m in ((1, 2), (1, 5))
    ]


def test_a_stage_may_have_no_layer_of_a_kind() -> None:
    stages = [layers("FSS"), layers("SS", first=3), layers("F", first=5)]
    configs = two_pool_configs(vllm_config(), stages, [100_000] * 3)
    assert len({(c.num_blocks, c.window_blocks) for c in configs}) == 1
    assert [[t.layers for t in c.kv_cache_tensors] for c in configs] == [
        [["layers.1", "layers.2"], ["layers.0"]],
        [["layers.3", "layers.4"]],
        [["layers.5"]],
    ]
    assert all(has_two_pools(config) for config in configs)
    for config in configs:
        assert all(tensor.size <= 100_000 for tensor in config.kv_cache_tensors)


def test_the_poorest_stage_is_the_one_that_is_refused() -> None:
    with pytest.raises(PoolSizeError, match=r"^5,000 bytes"):
        two_pool_configs(vllm_config(), [layers("FS"), layers("FS", 2)], [10**6, 5_000])


def test_auto_fit_takes_the_longest_request_that_every_worker_holds() -> None:
    budget = 60_000
    config = vllm_config(auto_fit=True, max_model_len=100_000)
    two_pool_configs(config, [layers("FSSFSS")], [budget])
    fitted = config.model_config.max_model_len
    assert 0 < fitted < 100_000
    plan(budget=budget, max_model_len=fitted)
    with pytest.raises(PoolSizeError):
        plan(budget=budget, max_model_len=fitted + 1)
    poorer = vllm_config(auto_fit=True, max_model_len=100_000)
    two_pool_configs(poorer, [layers("FSS"), layers("FSS", 3)], [budget, budget // 3])
    assert poorer.model_config.max_model_len < fitted


def test_auto_fit_leaves_a_length_that_fits_and_refuses_no_bytes() -> None:
    config = vllm_config(auto_fit=True, max_model_len=256)
    two_pool_configs(config, [layers("FS")], [10**6])
    assert config.model_config.max_model_len == 256
    with pytest.raises(PoolSizeError, match="one request of 1 tokens"):
        two_pool_configs(vllm_config(auto_fit=True), [layers("FS")], [100])


def test_concurrency_is_that_of_the_fuller_pool() -> None:
    config = vllm_config()
    many_full = plan(override=161, mimo={"swa_pool_blocks": 22})
    assert concurrency(config, many_full) == pytest.approx(21 / 7)
    many_window = plan(override=33, mimo={"swa_pool_blocks": 100})
    assert concurrency(config, many_window) == pytest.approx(32 / 16)


# --- where the bytes are -----------------------------------------------------------------------


def byte_ranges(config: TwoPoolConfig) -> list[tuple[int, int, str]]:
    """(begin, end, layer) of every page of every layer, as the strides say."""
    specs = {n: g.kv_cache_spec for g in config.kv_cache_groups for n in g.layer_names}
    found = []
    for tensor in config.kv_cache_tensors:
        for index, name in enumerate(tensor.layers):
            start = tensor.offset + index * tensor.layer_stride
            for block in range(config.num_blocks_of(tensor)):
                begin = start + block * tensor.block_stride
                found.append((begin, begin + specs[name].page_size_bytes, name))
    return sorted(found)


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
@pytest.mark.parametrize("pattern", ["FSSFSS", "FS", "FFFS", "FSSSSS"])
@pytest.mark.parametrize("swa_block_size", [16, 4])
def test_no_two_pages_share_a_byte(layout: str, pattern: str, swa_block_size: int) -> None:
    config = plan(pattern, layout=layout, mimo={"swa_block_size": swa_block_size})
    ranges = byte_ranges(config)
    assert len(ranges) == sum(
        config.num_blocks_of(t) * len(t.layers) for t in config.kv_cache_tensors
    )
    for (_, end, name), (begin, _, following) in itertools.pairwise(ranges):
        assert end <= begin, (name, following)
    size = config.kv_cache_tensors[0].size
    assert ranges[0][0] == 0 and ranges[-1][1] <= size
    assert sum(end - begin for begin, end, _ in ranges) == size, "no byte is wasted"


@pytest.mark.parametrize("layout", [layout.name for layout in KVCacheLayout])
def test_pools_stay_apart_in_every_layout_of_vllm(layout: str) -> None:
    """With vLLM's own views: what is written to a pool's layers leaves the other pool alone."""
    from vllm.v1.kv_cache_interface import create_kv_cache_views

    config = plan(layout=layout)
    raw = torch.zeros(config.kv_cache_tensors[0].size, dtype=torch.int8)
    views = {}
    for tensor, group in zip(config.kv_cache_tensors, config.kv_cache_groups[::-1], strict=True):
        assert tensor.layers == group.layer_names
        made = create_kv_cache_views(
            raw, group.kv_cache_spec, config.num_blocks_of(tensor), KVCacheLayout[layout], tensor
        )
        views |= zip(tensor.layers, made, strict=True)
    for number, view in enumerate(views.values(), start=1):
        assert (view == 0).all(), "not written by another layer"
        view.fill_(number)
    assert len(raw.unique()) == len(views), "every byte belongs to one layer"


# --- the config itself -------------------------------------------------------------------------


def test_a_config_survives_pickling_and_copying() -> None:
    config = plan()
    for made in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert type(made) is TwoPoolConfig
        assert made == config
        assert has_two_pools(made)
        assert [made.num_blocks_of(t) for t in made.kv_cache_tensors] == [
            config.num_blocks_of(t) for t in config.kv_cache_tensors
        ]
        assert made.kv_cache_groups[WINDOW_GROUP].kv_cache_spec.replay_bound == 124


def test_the_schedulers_config_is_one_of_two_pools() -> None:
    """vLLM makes it of the workers' configs, whose counts must agree."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

    stages = [layers("FSS"), layers("SF", first=3)]
    configs = two_pool_configs(vllm_config(), stages, [100_000] * 2)
    made = generate_scheduler_kv_cache_config(configs)
    assert has_two_pools(made)
    assert made.num_blocks == configs[0].num_blocks
    assert made.kv_cache_groups[WINDOW_GROUP].kv_cache_spec.pool_blocks == configs[0].window_blocks


def test_vllms_own_groups_are_not_two_pools() -> None:
    specs = list(layers("FS").values())
    groups = [KVCacheGroupSpec([str(i)], spec) for i, spec in enumerate(specs)]
    for kept in ([], groups, groups[::-1], groups[:1]):
        config = KVCacheConfig(num_blocks=2, kv_cache_tensors=[], kv_cache_groups=kept)
        assert not has_two_pools(config)
    assert has_two_pools(plan()) and FULL_GROUP != WINDOW_GROUP
