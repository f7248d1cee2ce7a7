"""The rank that is replayed: a model's layers and steps, as vLLM's cache planning wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm_mimo.checkpoints.geometry import AttentionGeometry, GeometryError, TextGeometry

CONFIGS = Path(__file__).resolve().parent.parent / "assets" / "configs"

LAYOUT = "LBNHC"
"""The KV layout that vLLM's attention backends prefer."""

MAX_NUM_SEQS = 256


@dataclass(frozen=True, slots=True)
class Deployment:
    """One tensor-parallel rank of a model with its KV in bf16."""

    geometry: TextGeometry
    tensor_parallel: int
    max_model_len: int
    """Tokens of the longest request."""
    block_size: int = 64
    """Tokens of a block (`--block-size`)."""
    chunk_tokens: int = 8192
    """Most tokens of a step (`--max-num-batched-tokens`)."""
    batches_in_flight: int = 2
    """Steps that are scheduled ahead: 2 with async scheduling, vLLM's default."""

    @property
    def max_in_flight_tokens(self) -> int:
        return self.batches_in_flight * self.chunk_tokens

    def kv_specs(self) -> dict[str, Any]:
        """vLLM's KV cache spec of each layer, by name, in order."""
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

        def common(attention: AttentionGeometry) -> dict[str, Any]:
            return {
                "block_size": self.block_size,
                "num_kv_heads": max(1, attention.num_kv_heads // self.tensor_parallel),
                "head_size": attention.head_dim,
                "head_size_v": attention.v_head_dim,
                "dtype": torch.bfloat16,
            }

        specs: dict[str, Any] = {}
        for layer in range(self.geometry.num_layers):
            attention = self.geometry.attention(layer)
            specs[f"model.layers.{layer}.self_attn.attn"] = (
                FullAttentionSpec(**common(attention))
                if attention.window is None
                else SlidingWindowSpec(**common(attention), sliding_window=attention.window)
            )
        return specs

    def vllm_config(self, retention: int | None, additional: Mapping[str, Any]) -> Any:
        """What cache planning reads of a `VllmConfig`: no speculation, connector or override.

        A real one would want weights, a tokenizer and a device.
        """
        from vllm.v1.kv_cache_layout import KVCacheLayout

        cache = SimpleNamespace(
            block_size=self.block_size,
            enable_prefix_caching=True,
            num_gpu_blocks_override=None,
            prefix_match_unit=None,
            prefix_cache_retention_interval=retention,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[LAYOUT],
        )
        length = self.max_model_len
        return SimpleNamespace(
            cache_config=cache,
            model_config=SimpleNamespace(max_model_len=length, original_max_model_len=length),
            scheduler_config=SimpleNamespace(
                disable_hybrid_kv_cache_manager=False, max_num_seqs=MAX_NUM_SEQS
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=self.tensor_parallel, decode_context_parallel_size=1
            ),
            attention_config=SimpleNamespace(hisparse_config=None),
            speculative_config=None,
            kv_transfer_config=None,
            num_prefill_lookahead_tokens=0,
            max_in_flight_tokens=self.max_in_flight_tokens,
            additional_config=additional,
        )


def load_geometry(name: str, tensor_parallel: int = 1) -> TextGeometry:
    """A bundled model by name, or the config.json of a folder; raises GeometryError."""
    path = CONFIGS / f"{name}.json"
    if not path.is_file():
        path = Path(name, "config.json")
    if not path.is_file():
        bundled = ", ".join(sorted(config.stem for config in CONFIGS.glob("*.json")))
        raise GeometryError(
            f"'{name}' is neither a bundled model ({bundled}) nor a folder with a config.json"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GeometryError(f"{path}: cannot be read as JSON ({error})") from error
    geometry = TextGeometry.from_config(config)
    heads = {geometry.full.num_kv_heads, geometry.swa.num_kv_heads}
    if tensor_parallel < 1 or any(max(n, tensor_parallel) % min(n, tensor_parallel) for n in heads):
        raise GeometryError(f"{name}: its KV heads cannot be split into {tensor_parallel} ranks")
    return geometry
