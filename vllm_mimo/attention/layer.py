"""The vLLM attention layer for K and V heads of different width.

On GPUs vLLM has backends that store K and V of different width (DiffKV). On CPUs it has none, so
values are padded to the key's width there, which costs KV-cache bytes but not exactness: a padded
value column is zero, and so is what attention makes of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from vllm.config import CacheConfig, get_current_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionType
from vllm.v1.attention.backends.registry import AttentionBackendEnum


class PaddedValueAttention(Attention):
    """Attention whose values (tokens, kv_heads * v_head_dim) are padded to the key's width."""

    def __init__(self, num_heads: int, head_dim: int, v_head_dim: int, **kwargs: Any) -> None:
        super().__init__(num_heads, head_dim, **kwargs)
        self.v_head_dim = v_head_dim

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Query, key and value per token and head -> (tokens, heads * v_head_dim)."""
        value = value.unflatten(-1, (self.num_kv_heads, self.v_head_dim))
        value = F.pad(value, (0, self.head_size - self.v_head_dim)).flatten(-2)
        out = super().forward(query, key, value)
        return out.unflatten(-1, (self.num_heads, self.head_size))[..., : self.v_head_dim].flatten(
            -2
        )


def make_attention(
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    window: int | None,
    sinks: torch.Tensor | None,
    cache_config: CacheConfig | None,
    quant_config: QuantizationConfig | None,
    prefix: str,
) -> Attention:
    """This rank's attention layer.

    Args:
        num_heads, num_kv_heads: of this rank.
        head_dim, v_head_dim: width of a query or key head, and of a value head.
        window: keys a query sees, itself included; None for full attention.
        sinks: (num_heads,) sink logits, or None.
        prefix: the layer's name, under which its KV cache is found.
    """
    common = {
        "scale": head_dim**-0.5,
        "num_kv_heads": num_kv_heads,
        "cache_config": cache_config,
        "quant_config": quant_config,
        "per_layer_sliding_window": window,
        "attn_type": AttentionType.DECODER,
        "prefix": prefix,
        "sinks": sinks,
    }
    if v_head_dim == head_dim:
        return Attention(num_heads, head_dim, **common)
    if current_platform.is_cpu():
        backend = AttentionBackendEnum.CPU_ATTN.get_class()
        return PaddedValueAttention(num_heads, head_dim, v_head_dim, attn_backend=backend, **common)
    backend = _diffkv_backend(head_dim, v_head_dim, sinks is not None)
    return Attention(num_heads, head_dim, attn_backend=backend, head_size_v=v_head_dim, **common)


def _diffkv_backend(head_dim: int, v_head_dim: int, has_sinks: bool) -> type[AttentionBackend]:
    """The user's DiffKV backend, or FlashAttention's where the device has it, or Triton's."""
    requested = get_current_vllm_config().attention_config.backend
    flash = AttentionBackendEnum.FLASH_ATTN_DIFFKV
    if requested is not None and requested.name.endswith("_DIFFKV"):
        chosen = requested
    elif flash.get_class().is_supported_on_current_device(
        head_size=head_dim, head_size_v=v_head_dim, has_sinks=has_sinks
    ):
        chosen = flash
    else:
        chosen = AttentionBackendEnum.TRITON_ATTN_DIFFKV
    backend = chosen.get_class()
    backend.set_head_size_v(v_head_dim)
    return backend
