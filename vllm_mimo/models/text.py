"""MiMo-V2 text models for vLLM: Flash, V2.5 and V2.5-Pro.

vLLM's own classes give the MoE, MLP, norms, model loop and compilation. Replaced here are the
attention module (CPU support, exact block-FP8 projections at any rank count) and the loading
(fused bf16 projections, checked tensors).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import (
    get_pp_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.mimo_v2 import (
    MiMoV2FlashDecoderLayer,
    MiMoV2FlashForCausalLM,
    MiMoV2ForCausalLM,
    MiMoV2MLP,
    MiMoV2Model,
    MiMoV2MoE,
)
from vllm.model_executor.models.utils import (
    PPMissingLayer,
    extract_layer_index,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)

from vllm_mimo.attention.layer import make_attention
from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.config import from_vllm_config
from vllm_mimo.models.loading import CheckedLoading, load_text_weights
from vllm_mimo.models.projection import make_qkv


class MimoAttention(nn.Module):
    """One attention layer of this rank."""

    def __init__(
        self,
        model: TextGeometry,
        geometry: AttentionGeometry,
        max_position: int,
        cache_config: CacheConfig | None,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        self.geometry, self.value_scale = geometry, model.value_scale
        self.num_heads = geometry.num_heads // ranks
        self.num_kv_heads = max(1, geometry.num_kv_heads // ranks)
        self.qkv_proj = make_qkv(
            model.hidden_size,
            geometry,
            model.qkv_chunks if model.fused_qkv else None,
            model.qk_bias,
            quant_config,
            f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            geometry.o_columns,
            model.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.o_proj",
        )
        self.rotary_emb = get_rope(
            head_size=geometry.head_dim,
            max_position=max_position,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": geometry.rope_theta,
                "partial_rotary_factor": model.rotary_factor,
            },
        )
        self.attention_sink_bias = _sinks(self.num_heads) if geometry.has_sink else None
        self.attn = make_attention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=geometry.head_dim,
            v_head_dim=geometry.v_head_dim,
            window=geometry.window,
            sinks=self.attention_sink_bias,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """positions (tokens,), hidden_states (tokens, hidden) -> (tokens, hidden)."""
        projected, _ = self.qkv_proj(hidden_states)
        q, k, v = self.qkv_proj.split(projected)
        q, k = self.rotary_emb(positions, q.contiguous(), k.contiguous())
        attended = self.attn(q, k, v * self.value_scale)
        output, _ = self.o_proj(attended)
        return output


def _sinks(heads: int) -> nn.Parameter:
    """A sink logit per head of this rank; the loader hands it the whole model's."""
    sinks = nn.Parameter(torch.empty(heads), requires_grad=False)

    def load(param: torch.Tensor, loaded: torch.Tensor) -> None:
        # vLLM 0.32 cuts the rank's heads out itself, 0.33 leaves that to the parameter.
        if loaded.shape[0] != heads:
            loaded = loaded.narrow(0, get_tensor_model_parallel_rank() * heads, heads)
        param.data.copy_(loaded)

    sinks.weight_loader = load
    return sinks


class MimoDecoderLayer(MiMoV2FlashDecoderLayer):
    """vLLM's decoder layer round our attention."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        config = vllm_config.model_config.hf_text_config
        geometry = TextGeometry.from_config(config)
        cache_config, quant_config = vllm_config.cache_config, vllm_config.quant_config
        # Full layers would otherwise take the config's window for their own.
        cache_config.sliding_window = None
        self.config = config
        self.hidden_size = config.hidden_size
        self.layer_id = extract_layer_index(prefix)
        self.self_attn = MimoAttention(
            geometry,
            geometry.attention(self.layer_id),
            config.max_position_embeddings,
            cache_config,
            quant_config,
            f"{prefix}.self_attn",
        )
        self.is_layer_sparse = geometry.layer_is_moe[self.layer_id]
        if self.is_layer_sparse:
            self.mlp = MiMoV2MoE(vllm_config=vllm_config, prefix=f"{prefix}.mlp")
        else:
            self.mlp = MiMoV2MLP(
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                hidden_act=config.hidden_act,
                quant_config=quant_config,
                prefix=f"{prefix}.mlp",
            )
        self.input_layernorm = RMSNorm(config.hidden_size, eps=geometry.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=geometry.norm_eps)


@support_torch_compile
class MimoModel(MiMoV2Model):
    """vLLM's model loop over our decoder layers."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        config = vllm_config.model_config.hf_config.get_text_config()
        self.config = config
        self.geometry = TextGeometry.from_config(config)
        self.quant_config = vllm_config.quant_config
        self.vocab_size = config.vocab_size
        self.num_redundant_experts = vllm_config.parallel_config.eplb_config.num_redundant_experts
        group = get_pp_group()
        if group.is_first_rank or (config.tie_word_embeddings and group.is_last_rank):
            self.embed_tokens = VocabParallelEmbedding(
                config.vocab_size,
                config.hidden_size,
                quant_config=self.quant_config,
                prefix=f"{prefix}.embed_tokens",
            )
        else:
            self.embed_tokens = PPMissingLayer()
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers,
            lambda prefix: MimoDecoderLayer(vllm_config=vllm_config, prefix=prefix),
            prefix=f"{prefix}.layers",
        )
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states", "residual"], config.hidden_size
        )
        self.norm = (
            RMSNorm(config.hidden_size, eps=self.geometry.norm_eps)
            if group.is_last_rank
            else PPMissingLayer()
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load (name, tensor) pairs of any layout; return the names of the loaded parameters."""
        return load_text_weights(self, weights, super().load_weights)


class MimoForCausalLM(CheckedLoading, MiMoV2FlashForCausalLM):
    """What Flash and its successors share. Register and use the subclasses."""

    upstream: type[nn.Module] = MiMoV2FlashForCausalLM
    """vLLM's own class, used when the plugin is switched off for this engine."""

    def __new__(cls, *, vllm_config: VllmConfig, prefix: str = "") -> nn.Module:
        if not from_vllm_config(vllm_config).enabled:
            return cls.upstream(vllm_config=vllm_config, prefix=prefix)
        return super().__new__(cls)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        config = vllm_config.model_config.hf_config.get_text_config()
        self.config = config
        self.quant_config = vllm_config.quant_config
        self.prepare_checks(vllm_config)
        self.model = MimoModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                config.vocab_size,
                config.hidden_size,
                quant_config=self.quant_config,
                prefix=maybe_prefix(prefix, "lm_head"),
            )
        else:
            self.lm_head = PPMissingLayer()
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors


class MimoFlashForCausalLM(MimoForCausalLM):
    """MiMo-V2-Flash: split Q, K and V projections."""


class MimoV2ForCausalLM(MimoForCausalLM):
    """MiMo-V2.5's text model and MiMo-V2.5-Pro: fused projections."""

    upstream = MiMoV2ForCausalLM
    packed_modules_mapping = MiMoV2ForCausalLM.packed_modules_mapping
