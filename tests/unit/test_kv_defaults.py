"""What two KV pools set before an engine exists, and what they refuse to be combined with."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import core
from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_mimo.config import MimoConfig, MimoConfigError
from vllm_mimo.hooks import kv_defaults, kv_planning
from vllm_mimo.hooks.kv_defaults import CPU_WORKER, GPU_WORKER, SCHEDULER, choose_kv
from vllm_mimo.kv.spec import TwoPoolConfig
from vllm_mimo.metrics.board import INSTANCE_VARIABLE
from vllm_mimo.scheduling.scheduler import MimoScheduler
from vllm_mimo.worker.cpu import MimoCPUWorker


class OwnScheduler(MimoScheduler):
    """A user's scheduler that builds on ours."""


class ForeignScheduler(AsyncScheduler):
    """One that does not."""


class OwnWorker(MimoCPUWorker):
    """A user's worker that builds on ours."""


class ForeignWorker(CPUWorker):
    """One that does not."""


@pytest.fixture(autouse=True)
def vllm_as_it_was(monkeypatch):
    """The functions that `install` wraps are put back."""
    for module, name in WRAPPED:
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setenv(INSTANCE_VARIABLE, "test")


WRAPPED = (
    (core, "get_kv_cache_configs"),
    (kv_cache_utils, "get_max_concurrency_for_kv_cache_config"),
)


def vllm_config(**more: Any) -> Any:
    """What `choose_kv` reads of a VllmConfig, with vLLM's defaults."""
    config = SimpleNamespace(
        additional_config={},
        model_config=SimpleNamespace(runner_type="generate"),
        cache_config=SimpleNamespace(
            block_size=16,
            user_specified_block_size=False,
            prefix_caching_hash_algo="sha256",
            prefix_match_unit=None,
            enable_prefix_caching=True,
            kv_offloading_size=None,
        ),
        scheduler_config=SimpleNamespace(scheduler_cls=None, disable_hybrid_kv_cache_manager=None),
        parallel_config=SimpleNamespace(
            worker_cls="auto", decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        kv_transfer_config=None,
    )
    for path, value in more.items():
        section, _, field = path.partition("__")
        if field:
            setattr(getattr(config, section), field, value)
        else:
            setattr(config, section, value)
    return config


def here(kind: type) -> str:
    return f"{__name__}.{kind.__name__}"


def test_a_mimo_engine_gets_scheduler_worker_block_size_and_hash() -> None:
    config = vllm_config()
    choose_kv(config, MimoConfig())
    assert config.scheduler_config.scheduler_cls == SCHEDULER
    assert config.parallel_config.worker_cls == CPU_WORKER
    assert config.cache_config.block_size == 64
    assert config.cache_config.user_specified_block_size
    assert config.cache_config.prefix_caching_hash_algo == "xxhash"


def test_on_a_gpu_it_is_the_gpu_worker(monkeypatch) -> None:
    monkeypatch.setattr(kv_defaults, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    config = vllm_config()
    choose_kv(config, MimoConfig())
    assert config.parallel_config.worker_cls == GPU_WORKER


def test_the_names_that_are_set_are_classes() -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname

    assert resolve_obj_by_qualname(SCHEDULER) is MimoScheduler
    assert resolve_obj_by_qualname(CPU_WORKER) is MimoCPUWorker
    assert GPU_WORKER == "vllm_mimo.worker.gpu.MimoGPUWorker"


def test_a_users_block_size_and_hash_stay() -> None:
    config = vllm_config(cache_config__block_size=32, cache_config__user_specified_block_size=True)
    choose_kv(config, MimoConfig(prefix_hash="vllm"))
    assert config.cache_config.block_size == 32
    assert config.cache_config.prefix_caching_hash_algo == "sha256"


def test_choosing_twice_changes_nothing() -> None:
    config = vllm_config()
    choose_kv(config, MimoConfig())
    before = copy.deepcopy(config)
    functions = [getattr(module, name) for module, name in WRAPPED]
    choose_kv(config, MimoConfig())
    assert config == before
    assert [getattr(module, name) for module, name in WRAPPED] == functions


@pytest.mark.parametrize(
    ("more", "config"),
    [
        ({}, MimoConfig(two_pools=False)),
        ({"model_config__runner_type": "pooling"}, MimoConfig()),
        ({"scheduler_config__disable_hybrid_kv_cache_manager": True}, MimoConfig()),
        (
            {
                "kv_transfer_config": SimpleNamespace(kv_connector="NixlConnector"),
                "parallel_config__worker_cls": here(ForeignWorker),
                "scheduler_config__scheduler_cls": here(ForeignScheduler),
                "parallel_config__decode_context_parallel_size": 4,
                "cache_config__prefix_match_unit": 8,
            },
            MimoConfig(two_pools=False),
        ),
    ],
    ids=["off", "pooling", "no hybrid manager", "off, with all that two pools refuse"],
)
def test_without_two_pools_vllm_is_left_alone(more: dict, config: MimoConfig) -> None:
    chosen = vllm_config(**more)
    before = copy.deepcopy(chosen)
    functions = [getattr(module, name) for module, name in WRAPPED]
    choose_kv(chosen, config)
    assert chosen == before
    assert [getattr(module, name) for module, name in WRAPPED] == functions


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (
            {"kv_transfer_config": SimpleNamespace(kv_connector="NixlConnector")},
            "--kv-transfer-config names the connector 'NixlConnector'",
        ),
        (
            {"kv_transfer_config": SimpleNamespace(kv_connector="MooncakeStoreConnector")},
            "'MooncakeStoreConnector'",
        ),
        (
            {"parallel_config__decode_context_parallel_size": 2},
            "--decode-context-parallel-size 2",
        ),
        (
            {"parallel_config__prefill_context_parallel_size": 4},
            "--prefill-context-parallel-size 4",
        ),
        ({"cache_config__prefix_match_unit": 16}, "--prefix-match-unit"),
        ({"cache_config__kv_offloading_size": 4.0}, "--kv-offloading-size"),
        (
            {"scheduler_config__scheduler_cls": here(ForeignScheduler)},
            f"--scheduler-cls {here(ForeignScheduler)} is no subclass of {SCHEDULER}",
        ),
        (
            {"scheduler_config__scheduler_cls": ForeignScheduler},
            "ForeignScheduler'> is no subclass of",
        ),
        (
            {"scheduler_config__scheduler_cls": f"{__name__}.vllm_config"},
            "is no subclass of",
        ),
        (
            {"parallel_config__worker_cls": here(ForeignWorker)},
            f"--worker-cls {here(ForeignWorker)} has not the plugin's worker seam",
        ),
    ],
)
def test_what_two_pools_cannot_be_combined_with_is_refused_by_name(more: dict, named: str) -> None:
    with pytest.raises(MimoConfigError) as caught:
        choose_kv(vllm_config(**more), MimoConfig())
    message = str(caught.value)
    assert named in message
    assert """--additional-config '{"mimo": {"two_pools": false}}'""" in message, "the way out"


def test_a_connector_config_without_a_connector_is_fine() -> None:
    config = vllm_config(kv_transfer_config=SimpleNamespace(kv_connector=None))
    choose_kv(config, MimoConfig())
    assert config.scheduler_config.scheduler_cls == SCHEDULER


@pytest.mark.parametrize("scheduler", [here(OwnScheduler), OwnScheduler, SCHEDULER])
def test_a_users_subclasses_of_ours_stay(scheduler: str | type) -> None:
    config = vllm_config(
        scheduler_config__scheduler_cls=scheduler, parallel_config__worker_cls=here(OwnWorker)
    )
    choose_kv(config, MimoConfig())
    assert config.scheduler_config.scheduler_cls == scheduler
    assert config.parallel_config.worker_cls == here(OwnWorker)
    assert kv_planning.uses_two_pools(config)


# --- planning ----------------------------------------------------------------------------------


def test_planning_is_wrapped_once_and_keeps_its_signature() -> None:
    before = [inspect.signature(getattr(module, name)) for module, name in WRAPPED]
    kv_planning.install()
    functions = [getattr(module, name) for module, name in WRAPPED]
    kv_planning.install()
    assert [getattr(module, name) for module, name in WRAPPED] == functions
    assert [inspect.signature(function) for function in functions] == before


@pytest.mark.parametrize("groups", [(), (["global groups"],)], ids=["0.32", "0.33"])
def test_other_models_are_planned_by_vllm(monkeypatch, groups: tuple) -> None:
    seen = []
    monkeypatch.setattr(
        core, "get_kv_cache_configs", lambda *args, **more: seen.append((args, more)) or "theirs"
    )
    kv_planning.install()
    for scheduler in (None, ForeignScheduler, here(ForeignScheduler)):
        config = vllm_config(scheduler_config__scheduler_cls=scheduler)
        assert core.get_kv_cache_configs(config, [{}], [1], *groups) == "theirs"
        assert seen.pop() == ((config, [{}], [1], *groups), {})
    config = vllm_config(
        scheduler_config__scheduler_cls=SCHEDULER,
        scheduler_config__disable_hybrid_kv_cache_manager=True,
    )
    assert core.get_kv_cache_configs(config, [{}], [1], *groups) == "theirs"


@pytest.mark.parametrize("groups", [(), (["global groups"],)], ids=["0.32", "0.33"])
def test_mimo_engines_are_planned_by_us(monkeypatch, groups: tuple) -> None:
    from vllm_mimo.kv import planning

    monkeypatch.setattr(core, "get_kv_cache_configs", lambda *_: pytest.fail("vLLM planned"))
    monkeypatch.setattr(planning, "two_pool_configs", lambda *args: args)
    config = vllm_config()
    choose_kv(config, MimoConfig())
    assert core.get_kv_cache_configs(config, [{}], [1], *groups) == (config, [{}], [1])


def test_concurrency_is_asked_of_us_for_two_pools_only(monkeypatch) -> None:
    from vllm_mimo.kv import planning

    name = "get_max_concurrency_for_kv_cache_config"
    monkeypatch.setattr(kv_cache_utils, name, lambda *_: 1.0)
    monkeypatch.setattr(planning, "concurrency", lambda *_: 2.0)
    kv_planning.install()
    ours = TwoPoolConfig(num_blocks=2, kv_cache_tensors=[], kv_cache_groups=[])
    theirs = SimpleNamespace(num_blocks=2)
    assert getattr(kv_cache_utils, name)(None, theirs) == 1.0
    assert getattr(kv_cache_utils, name)(None, ours) == 2.0


def test_host_memory_brings_its_connector() -> None:
    config = vllm_config()
    choose_kv(config, MimoConfig(host_gib=1.5))
    made = config.kv_transfer_config
    assert (made.kv_connector, made.kv_role) == ("MimoTierConnector", "kv_both")
    module = importlib.import_module(made.kv_connector_module_path)
    assert issubclass(getattr(module, made.kv_connector), SupportsHMA)
    choose_kv(config, MimoConfig(host_gib=1.5))
    assert config.kv_transfer_config is made


def test_without_host_memory_there_is_no_connector() -> None:
    config = vllm_config()
    choose_kv(config, MimoConfig())
    assert config.kv_transfer_config is None


def test_host_memory_needs_prefix_caching() -> None:
    config = vllm_config(cache_config__enable_prefix_caching=False)
    with pytest.raises(MimoConfigError, match=r"'host_gib' .*--no-enable-prefix-caching"):
        choose_kv(config, MimoConfig(host_gib=1.5))


def test_host_memory_and_another_connector_are_refused_by_name() -> None:
    config = vllm_config(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector"))
    with pytest.raises(MimoConfigError, match=r"--kv-transfer-config .*'NixlConnector'"):
        choose_kv(config, MimoConfig(host_gib=1.5))


def test_a_third_tier_needs_host_memory_and_brings_a_common_hash_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    l3 = {"path": str(tmp_path / "l3"), "gib": 1}
    with pytest.raises(MimoConfigError, match=r"'l3' .* set 'host_gib' too"):
        choose_kv(vllm_config(), MimoConfig(l3=l3))
    seeds = []
    for _ in range(2):
        monkeypatch.setenv("PYTHONHASHSEED", "random")
        config = vllm_config()
        choose_kv(config, MimoConfig(l3=l3, host_gib=1.0))
        assert config.cache_config.prefix_caching_hash_algo == "xxhash_cbor"
        seeds.append(os.environ["PYTHONHASHSEED"])
    assert seeds[0] == seeds[1] and seeds[0].isdigit()
    assert (tmp_path / "l3" / "hash-seed").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    choose_kv(vllm_config(), MimoConfig(l3=l3, host_gib=1.0))
    assert os.environ["PYTHONHASHSEED"] == "7", "the user's own stays"
