"""Models of any tensor-parallel rank, built in this one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.paths import real_config


def narrow_config(name: str, fp8: bool) -> dict[str, Any]:
    """A real model's config with its heads, but 2 layers, 256 wide, 16 experts, 512 words."""
    config = real_config(name)
    for tower in ("vision_config", "audio_config", "processor_config", "auto_map"):
        config.pop(tower, None)
    config.update(
        num_hidden_layers=2,
        hybrid_layer_pattern=[0, 1],
        moe_layer_freq=[0, 1],
        hidden_size=256,
        intermediate_size=2048,
        moe_intermediate_size=2048,
        n_routed_experts=16,
        num_experts_per_tok=1,
        vocab_size=512,
        max_position_embeddings=512,
    )
    if not fp8:
        config.pop("quantization_config", None)
    return config


@pytest.fixture(scope="session")
def one_process() -> None:
    """Distributed groups of one rank, whose size `as_rank` then pretends to be larger."""
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import model_parallel_is_initialized

    if not model_parallel_is_initialized():
        import tempfile

        from vllm.config import VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig()):
            init_distributed_environment(
                world_size=1,
                rank=0,
                local_rank=0,
                distributed_init_method=f"file://{tempfile.mkdtemp()}/rendezvous",
                backend="gloo",
            )
            initialize_model_parallel()


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """Let vLLM's layers believe that they are `rank` of `ranks`; nothing may communicate inside."""
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    before = group.world_size, group.rank_in_group
    group.world_size, group.rank_in_group = ranks, rank
    try:
        yield
    finally:
        group.world_size, group.rank_in_group = before


Build = Callable[[Any, int, int], torch.nn.Module]


@pytest.fixture
def build(one_process: None, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Function (vllm_config, rank, ranks) -> an empty model of that rank."""
    # Weights are only loaded and compared here, so the FP8 kernel's hardware does not matter.
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    def make(vllm_config: Any, rank: int, ranks: int) -> torch.nn.Module:
        vllm_config.compilation_config.static_forward_context.clear()
        with (
            set_current_vllm_config(vllm_config),
            as_rank(rank, ranks),
            set_default_torch_dtype(torch.bfloat16),
        ):
            return initialize_model(vllm_config)

    return make


def engine_config(folder: Path, config: dict[str, Any]) -> Any:
    """vLLM's whole configuration for a checkpoint folder that holds no more than config.json."""
    from vllm.engine.arg_utils import EngineArgs

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        additional_config={"mimo": {"fp8_on_cpu": "native"}},
    ).create_engine_config()
