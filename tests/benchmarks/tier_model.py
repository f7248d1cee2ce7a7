"""A random text model in the MiMo layout whose KV is large beside its weights, and its engine.

Every second layer is a full-attention layer, and each head has KV of its own, so that on a CPU the
copy of a long prefix takes about as long as the computation of a short end.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.tiny.checkpoints import bundled_tokenizer
from vllm_mimo.tiny.shapes import random_config
from vllm_mimo.tiny.write import random_state, write_checkpoint

BLOCK = 64
WINDOW = 128
FULL_LAYERS = 9


def write_model(
    folder: Path, heads: int = 4, hidden: int = 256, full_layers: int = FULL_LAYERS
) -> Path:
    """Write the checkpoint and return its folder; its full-attention layers are 0, 2, 4, ..."""
    tokenizer = bundled_tokenizer()
    layers = 2 * full_layers
    config = random_config("flash", tokenizer, fp8=False) | {
        "num_hidden_layers": layers,
        "hybrid_layer_pattern": [0, 1] * full_layers,
        "moe_layer_freq": [0] * layers,
        "num_attention_heads": heads,
        "swa_num_attention_heads": heads,
        "num_key_value_heads": heads,
        "swa_num_key_value_heads": heads,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": 65536,
    }
    state = random_state(TextGeometry.from_config(config), seed=0)
    write_checkpoint(folder, config, state, tokenizer)
    return folder


def tokens(rng: random.Random, count: int) -> list[int]:
    """A prompt or a part of one."""
    return rng.choices(range(2000), k=count)


def scheduler_of(llm: Any) -> Any:
    """The scheduler of an engine that runs in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def first_token(llm: Any, name: str, prompt: list[int]) -> tuple[float, int]:
    """Run one request for one token: seconds to it, and the prompt tokens found in caches."""
    engine = llm.llm_engine
    begin = time.perf_counter()
    add(llm, name, prompt)
    while True:
        for output in engine.step():
            if output.request_id == name and output.outputs:
                return time.perf_counter() - begin, output.num_cached_tokens or 0


def add(llm: Any, name: str, prompt: list[int]) -> None:
    """Queue a request for one token."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=1, detokenize=False)
    llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, sampling)


def settle(llm: Any, seconds: float = 30.0) -> None:
    """Step until nothing runs and nothing is being stored."""
    core = llm.llm_engine.engine_core.engine_core
    end = time.monotonic() + seconds
    while core.scheduler.has_requests():
        if time.monotonic() > end:
            raise TimeoutError("the engine does not come to rest")
        core.step_fn()


def page_bytes(llm: Any) -> dict[int, tuple[int, int]]:
    """For each group of two pools: bytes of one layer's block, and layers."""
    groups = scheduler_of(llm).kv_cache_config.kv_cache_groups
    return {
        group: (groups[group].kv_cache_spec.page_size_bytes, len(groups[group].layer_names))
        for group in (FULL_GROUP, WINDOW_GROUP)
    }


def exact_bytes(llm: Any, cached: int) -> int:
    """Bytes of the full blocks of `cached` tokens, and of the SWA blocks of one window before."""
    (full, full_layers), (window, window_layers) = page_bytes(llm).values()
    tail = -(-(WINDOW - 1) // BLOCK)
    return cached // BLOCK * full * full_layers + tail * window * window_layers
