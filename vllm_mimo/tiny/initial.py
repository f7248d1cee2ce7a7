"""Initial weights in which a copying circuit is laid out, so that minutes of training suffice.

Random weights need tens of millions of tokens before attention learns to copy; a tiny model trained
on a laptop sees three. So the known circuit (an induction head: Olsson et al. 2022, "In-context
Learning and Induction Heads") is written into the initial weights, and training takes it from
there. The residual stream, 128 wide, starts as four lanes of token codes and a constant:

    [0, 32) this token | [32, 64) the one before | [64, 96) prediction | [96, 127) two before | 1

Layers 1 and 2 (sliding window) each hold heads that attend one token back by rotary phase alone and
move a lane down; layer 5 (full attention) looks for the place where the same two tokens stood
before and copies what followed there into the prediction lane, which the LM head reads.
"""

from __future__ import annotations

import torch

from vllm_mimo.reference.text import Attention, MiMoV2Reference

LANE = 32
THIS, BEFORE, PREDICTION, TWO_BEFORE = 0, 32, 64, 96
CONSTANT = 127

PREVIOUS_LAYERS = ((1, THIS, BEFORE), (2, BEFORE, TWO_BEFORE))
COPY_LAYER = 5

_PEAK = 20.0
"""Attention logit that one rotary frequency gives to the token before."""
_MATCH = 14.0
"""Attention logit of two equal pairs of tokens."""


@torch.no_grad()
def lay_out(model: MiMoV2Reference, generator: torch.Generator) -> None:
    """Overwrite a new model's weights. Raises ValueError when it is too small for the circuit."""
    geometry = model.geometry
    if geometry.hidden_size != 128 or geometry.layer_is_swa[:6] != (False, *[True] * 4, False):
        raise ValueError("the initial circuit needs a hidden size of 128 and MiMo's layer pattern")
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(0.1)
        elif name.endswith("gate.weight"):
            weight.normal_(std=0.05, generator=generator)
    codes = torch.nn.functional.normalize(
        torch.randn(geometry.vocab_size, LANE, generator=generator), dim=-1
    )
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.normal_(std=0.01, generator=generator)
    embedding[:, THIS : THIS + LANE] = codes
    embedding[:, CONSTANT] = 1
    head.normal_(std=0.02, generator=generator)
    head[:, PREDICTION : PREDICTION + LANE] += codes
    for layer, source, target in PREVIOUS_LAYERS:
        _move_one_back(model.model.layers[layer].self_attn, source, target, lanes=layer + 1)
    _copy_after_match(model.model.layers[COPY_LAYER].self_attn, generator)


def _unit_scale(lanes: int) -> float:
    """Norm of one unit-norm lane behind RMSNorm when `lanes` of them are filled."""
    return (128 / lanes) ** 0.5


def _move_one_back(attention: Attention, source: int, target: int, lanes: int) -> None:
    """Heads 0 and 1 (by KV head) attend to the token before and write its `source` lane."""
    geo = attention.geo
    half = attention.rotary_dim // 2
    phase = 1.0 / geo.rope_theta ** (torch.arange(half) / half)
    unit = _unit_scale(lanes)
    strength = (_PEAK * geo.head_dim**0.5) ** 0.5 / unit
    group = geo.num_heads // geo.num_kv_heads
    for kv in range(2):
        q0, k0, v0 = kv * group * geo.head_dim, kv * geo.head_dim, kv * geo.v_head_dim
        o0, part = kv * group * geo.v_head_dim, LANE // 2
        for weight, start in ((attention.q_proj.weight, q0), (attention.k_proj.weight, k0)):
            weight[start : start + geo.head_dim] = 0
        attention.k_proj.weight[k0 : k0 + half, CONSTANT] = strength
        attention.q_proj.weight[q0 : q0 + half, CONSTANT] = strength * phase.cos()
        attention.q_proj.weight[q0 + half : q0 + 2 * half, CONSTANT] = -strength * phase.sin()
        first, count = source + kv * part, part
        # The constant stands at the end of the last lane: leave it alone.
        room = min(count, CONSTANT - (target + kv * part))
        attention.v_proj.weight[v0 : v0 + geo.v_head_dim] = 0
        attention.o_proj.weight[:, o0 : o0 + geo.v_head_dim] *= 0.1
        for i in range(room):
            attention.v_proj.weight[v0 + i, first + i] = 1 / (unit * attention.value_scale)
            attention.o_proj.weight[target + kv * part + i, o0 + i] = 1


def _copy_after_match(attention: Attention, generator: torch.Generator) -> None:
    """One head of each KV head finds the pair (before, this) again and copies what followed."""
    geo = attention.geo
    free = geo.head_dim - attention.rotary_dim
    for_this, for_before = (free + 1) // 2, free // 2
    unit = _unit_scale(4)
    strength = (_MATCH * geo.head_dim**0.5 / 2) ** 0.5 / unit

    def projection(rows: int, columns: int) -> torch.Tensor:
        square = torch.linalg.qr(torch.randn(LANE, LANE, generator=generator)).Q
        return square[:rows, :columns] * (LANE / rows) ** 0.5 * strength

    this, before = projection(for_this, LANE), projection(for_before, LANE - 1)
    group = geo.num_heads // geo.num_kv_heads
    for kv in range(2):
        q0, k0, v0 = kv * group * geo.head_dim, kv * geo.head_dim, kv * geo.v_head_dim
        o0, part = kv * group * geo.v_head_dim, LANE // 2
        attention.q_proj.weight[q0 : q0 + geo.head_dim] = 0
        attention.k_proj.weight[k0 : k0 + geo.head_dim] = 0
        start = attention.rotary_dim
        middle, end = start + for_this, start + for_this + for_before
        attention.q_proj.weight[q0 + start : q0 + middle, THIS : THIS + LANE] = this
        attention.k_proj.weight[k0 + start : k0 + middle, BEFORE : BEFORE + LANE] = this
        attention.q_proj.weight[q0 + middle : q0 + end, BEFORE : BEFORE + LANE - 1] = before
        attention.k_proj.weight[k0 + middle : k0 + end, TWO_BEFORE : TWO_BEFORE + LANE - 1] = before
        attention.v_proj.weight[v0 : v0 + geo.v_head_dim] = 0
        attention.o_proj.weight[:, o0 : o0 + geo.v_head_dim] *= 0.1
        for i in range(part):
            attention.v_proj.weight[v0 + i, THIS + kv * part + i] = 1 / (
                unit * attention.value_scale
            )
            attention.o_proj.weight[PREDICTION + kv * part + i, o0 + i] = 2
