"""MiMo-V2's text model and its MTP layers, from the semantics, in plain torch.

Parameter names are those of the split ("flash") checkpoint layout, so `state_dict()` is a
checkpoint. It has no KV cache: it computes whole sequences, which is what an oracle needs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.reference.attention import attend_dense

Attend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, int | None, torch.Tensor | None], torch.Tensor
]


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square taken in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_tables(
    positions: torch.Tensor, rotary_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each (tokens, rotary_dim / 2), of the rotary angles at `positions`."""
    steps = torch.arange(0, rotary_dim, 2, dtype=torch.float, device=positions.device)
    angle = positions.float()[:, None] * (1.0 / theta ** (steps / rotary_dim))[None, :]
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the first `2 * cos.shape[-1]` dims of x (..., tokens, head_dim) in half-split pairs."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class Attention(nn.Module):
    """Grouped-query attention; values are scaled before they are attended to."""

    def __init__(self, model: TextGeometry, geo: AttentionGeometry, attend: Attend) -> None:
        super().__init__()
        self.geo, self.attend, self.value_scale = geo, attend, model.value_scale
        self.rotary_dim = int(geo.head_dim * model.rotary_factor)
        hidden = model.hidden_size
        self.q_proj = nn.Linear(hidden, geo.q_rows, bias=model.qk_bias)
        self.k_proj = nn.Linear(hidden, geo.k_rows, bias=model.qk_bias)
        self.v_proj = nn.Linear(hidden, geo.v_rows, bias=model.qk_bias)
        self.o_proj = nn.Linear(geo.o_columns, hidden, bias=False)
        self.attention_sink_bias = (
            nn.Parameter(torch.zeros(geo.num_heads)) if geo.has_sink else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        geo = self.geo
        q = self.q_proj(x).unflatten(-1, (geo.num_heads, geo.head_dim)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (geo.num_kv_heads, geo.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (geo.num_kv_heads, geo.v_head_dim)).transpose(1, 2)
        position = torch.arange(x.shape[1], device=x.device)
        cos, sin = (t.to(x.dtype) for t in rotary_tables(position, self.rotary_dim, geo.rope_theta))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = self.attend(q, k, v * self.value_scale, geo.window, self.attention_sink_bias)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores in float32; the bias chooses experts but does not weigh them (`noaux_tc`)."""

    def __init__(self, model: TextGeometry) -> None:
        super().__init__()
        self.k, self.normalize = model.experts_per_token, model.normalize_topk
        self.weight = nn.Parameter(torch.zeros(model.num_experts, model.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(model.num_experts), False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x (tokens, hidden) -> weights (tokens, k) in float32, expert ids (tokens, k)."""
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.weight.float()).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.k, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights, chosen


class MoE(nn.Module):
    """Routed experts, no shared one."""

    def __init__(self, model: TextGeometry) -> None:
        super().__init__()
        self.gate = Router(model)
        self.experts = nn.ModuleList(
            MLP(model.hidden_size, model.moe_intermediate_size) for _ in range(model.num_experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat)
        k = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts))
        parts = flat[order // k].split(counts.tolist())
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        done = done * weights.flatten()[order, None].to(done.dtype)
        out = torch.zeros_like(flat, dtype=done.dtype).index_add(0, order // k, done)
        return out.view_as(x)

    def forward_all_experts(self, x: torch.Tensor) -> torch.Tensor:
        """`forward` without gather and scatter: every expert sees every token, few count.

        More arithmetic in fewer, larger products: quicker for experts as narrow as a tiny model's.
        """
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat)
        share = torch.zeros(flat.shape[0], len(self.experts), dtype=weights.dtype)
        share = share.scatter(1, chosen, weights)
        gate, up = (
            F.linear(flat, torch.cat([getattr(e, name).weight for e in self.experts]))
            for name in ("gate_proj", "up_proj")
        )
        inner = (F.silu(gate) * up).unflatten(-1, (len(self.experts), -1)) * share[..., None]
        down = torch.cat([e.down_proj.weight for e in self.experts], dim=1)
        return F.linear(inner.flatten(-2).to(gate.dtype), down).view_as(x)


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP (dense or MoE), each with a residual."""

    def __init__(self, model: TextGeometry, layer: int, attend: Attend) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(model.hidden_size, model.norm_eps)
        self.self_attn = Attention(model, model.attention(layer), attend)
        self.post_attention_layernorm = RMSNorm(model.hidden_size, model.norm_eps)
        self.mlp: nn.Module = (
            MoE(model)
            if model.layer_is_moe[layer]
            else MLP(model.hidden_size, model.intermediate_size)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class MTPLayer(nn.Module):
    """Predicts one token further: joins a hidden state with the next token's embedding.

    A dense SWA layer. Its output, after `final_layernorm`, feeds the LM head and the next layer.
    """

    def __init__(self, model: TextGeometry, attend: Attend) -> None:
        super().__init__()
        hidden, eps = model.hidden_size, model.norm_eps
        self.enorm = RMSNorm(hidden, eps)
        self.hnorm = RMSNorm(hidden, eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(model, model.swa, attend)
        self.pre_mlp_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(hidden, model.intermediate_size)
        self.final_layernorm = RMSNorm(hidden, eps)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))
        x = x + self.self_attn(self.input_layernorm(x))
        return self.final_layernorm(x + self.mlp(self.pre_mlp_layernorm(x)))


class _MTP(nn.Module):
    def __init__(self, model: TextGeometry, attend: Attend) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MTPLayer(model, attend) for _ in range(model.num_mtp_layers))


class _Trunk(nn.Module):
    def __init__(self, model: TextGeometry, attend: Attend) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(model, i, attend) for i in range(model.num_layers))
        self.norm = RMSNorm(model.hidden_size, model.norm_eps)
        self.mtp = _MTP(model, attend)


class MiMoV2Reference(nn.Module):
    """The text model. `forward` gives logits; `hidden` and `mtp_hidden` give what feeds them."""

    def __init__(self, geometry: TextGeometry, attend: Attend = attend_dense) -> None:
        super().__init__()
        self.geometry = geometry
        self.model = _Trunk(geometry, attend)
        self.lm_head = nn.Linear(geometry.hidden_size, geometry.vocab_size, bias=False)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (batch, T) -> hidden states after the final norm (batch, T, hidden)."""
        return self.hidden_of(self.model.embed_tokens(tokens))

    def hidden_of(self, embedded: torch.Tensor) -> torch.Tensor:
        """The same from embeddings (batch, T, hidden), some of which may be a tower's."""
        for layer in self.model.layers:
            embedded = layer(embedded)
        return self.model.norm(embedded)

    def mtp_hidden(self, tokens: torch.Tensor, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Hidden states of each MTP layer.

        Layer k's state at index t predicts token t + k + 2. It reads the state of layer k - 1 (the
        trunk's for k = 0) at t and the embedding of token t + k + 1, so it is k + 1 tokens shorter
        than `tokens`: (batch, T - k - 1, hidden).
        """
        out = []
        for k, layer in enumerate(self.model.mtp.layers):
            hidden = layer(self.model.embed_tokens(tokens[:, k + 1 :]), hidden[:, :-1])
            out.append(hidden)
        return out

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (batch, T) -> logits (batch, T, vocab)."""
        return self.lm_head(self.hidden(tokens))
