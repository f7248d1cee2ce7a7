"""What the exact output is, and the rule by which an engine's output is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.reference.text import MiMoV2Reference
from vllm_mimo.tiny.checkpoints import read_split_state

Logits = Callable[[Sequence[int]], torch.Tensor]
"""Token ids (T) -> logits (T, vocab) in float32."""

NEAR_TIE = 1e-4
"""Two runs may differ where the reference's two best logits are closer than this."""


def reference(folder: Path) -> Logits:
    """The project's own plain-torch model on a checkpoint of any layout."""
    config, state = read_split_state(folder)
    model = MiMoV2Reference(TextGeometry.from_config(config))
    model.load_state_dict(state)

    @torch.no_grad()
    def logits(tokens: Sequence[int]) -> torch.Tensor:
        return model(torch.tensor([list(tokens)]))[0]

    return logits


def transformers_model(folder: Path) -> Logits:
    """transformers' `mimo_v2_flash` class, eager, on a checkpoint with twice the KV heads in SWA
    layers (Flash, V2.5).
    """
    from transformers.models.mimo_v2_flash import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

    config, state = read_split_state(folder)
    geometry = TextGeometry.from_config(config)
    assert geometry.swa.num_kv_heads == 2 * geometry.full.num_kv_heads
    kinds = ("full_attention", "sliding_attention")
    model = MiMoV2FlashForCausalLM(
        MiMoV2FlashConfig(
            vocab_size=geometry.vocab_size,
            hidden_size=geometry.hidden_size,
            intermediate_size=geometry.intermediate_size,
            num_hidden_layers=geometry.num_layers,
            num_attention_heads=geometry.full.num_heads,
            num_key_value_heads=geometry.full.num_kv_heads,
            head_dim=geometry.full.head_dim,
            v_head_dim=geometry.full.v_head_dim,
            moe_intermediate_size=geometry.moe_intermediate_size,
            n_routed_experts=geometry.num_experts,
            num_experts_per_tok=geometry.experts_per_token,
            sliding_window=geometry.swa.window,
            max_position_embeddings=config["max_position_embeddings"],
            rms_norm_eps=geometry.norm_eps,
            attention_value_scale=geometry.value_scale,
            layer_types=[kinds[swa] for swa in geometry.layer_is_swa],
            mlp_layer_types=["sparse" if moe else "dense" for moe in geometry.layer_is_moe],
            rope_parameters={
                kind: {
                    "rope_type": "default",
                    "rope_theta": geo.rope_theta,
                    "partial_rotary_factor": geometry.rotary_factor,
                }
                for kind, geo in zip(kinds, (geometry.full, geometry.swa), strict=True)
            },
            pad_token_id=config["pad_token_id"],
            attn_implementation="eager",
        )
    ).eval()
    model.load_state_dict(_transformers_names(state, geometry))

    @torch.no_grad()
    def logits(tokens: Sequence[int]) -> torch.Tensor:
        return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]

    return logits


def _transformers_names(
    state: dict[str, torch.Tensor], geometry: TextGeometry
) -> dict[str, torch.Tensor]:
    """Hub names -> the class's own: experts stacked, sinks renamed, no MTP layers."""
    out = {}
    for name, tensor in state.items():
        if not name.startswith("model.mtp.") and ".experts." not in name:
            out[name.replace("attention_sink_bias", "sinks")] = tensor
    for layer, moe in enumerate(geometry.layer_is_moe):
        if not moe:
            continue
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = range(geometry.num_experts)
        out[f"{prefix}.gate_up_proj"] = torch.stack(
            [
                torch.cat([state[f"{prefix}.{e}.{x}_proj.weight"] for x in ("gate", "up")])
                for e in experts
            ]
        )
        out[f"{prefix}.down_proj"] = torch.stack(
            [state[f"{prefix}.{e}.down_proj.weight"] for e in experts]
        )
    return out


def check_greedy(
    logits: Logits,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    near_tie: float = NEAR_TIE,
    allowed_share: float = 0.001,
) -> list[str]:
    """Check that `outputs` are the greedy continuations of `prompts`.

    Where an output first differs, the oracle's two best logits must be closer than `near_tie`, and
    at most `allowed_share` of the requests may differ at all.

    Returns:
        A line for each request that differs; raises AssertionError with them when one may not.
    """
    cases, wrong = [], False
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        seen = logits([*prompt, *output])[len(prompt) - 1 : -1]
        best = seen.topk(2, dim=-1)
        for step, token in enumerate(output):
            if token != best.indices[step, 0]:
                gap = float(best.values[step, 0] - best.values[step, 1])
                cases.append(f"request {i} ({len(prompt)} tokens), step {step}: gap {gap:.2e}")
                wrong |= gap >= near_tie
                break
    assert not wrong and len(cases) <= allowed_share * len(prompts), "\n".join(cases)
    return cases
