"""Bytes of weights on each rank, counted tensor by tensor from the checkpoint's schema.

How a tensor is spread follows the plugin's model classes and vLLM's layers under them. Nothing is
rounded: what ranks hold together is the checkpoint's bytes plus the copies that the rules imply.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.checkpoints.schema import TOWER_PREFIXES, TensorSpec
from vllm_mimo.checkpoints.towers import VisionGeometry, all_tensors
from vllm_mimo.planner.placement import Placement, stage_layers

ELEMENT_BYTES = {"bf16": 2, "f32": 4, "fp8": 1, "scale": 4}
"""Bytes of an element of each kind of tensor; scales of block FP8 are float32."""

PARTS = (
    "attention",
    "dense MLP",
    "routed experts",
    "norms and routers",
    "embeddings",
    "MTP",
    "towers",
)
"""What the planner reports on; MTP layers are one part with everything in them."""

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it by the ranks."""

Rule = Literal["split", "experts", "qkv", "vocabulary", "copy"]

_LAYER = re.compile(r"model\.(mtp\.)?layers\.(\d+)\.(.*)")
_SPLIT_IN_VISION = re.compile(
    r"\.(attn\.qkv|mlp\.gate_proj|mlp\.up_proj|mlp\.0)\.|\.(attn\.proj|mlp\.down_proj|mlp\.2)\.weight"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a tensor belongs and how ranks share it."""

    part: str
    rule: Rule
    layer: int | None
    """Decoder or MTP layer; None for what is outside of layers."""


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor as stored."""
    return math.prod(spec.shape) * ELEMENT_BYTES[spec.kind]


def checkpoint_bytes(config: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Tensors in the checkpoint, and its bytes by part."""
    count, totals = 0, Counter(dict.fromkeys(PARTS, 0))
    for spec in all_tensors(config):
        count += 1
        totals[classify(spec.name).part] += tensor_bytes(spec)
    return count, dict(totals)


def classify(name: str) -> Kept:
    """Part, rule and layer of the tensor called `name`."""
    if name.startswith(TOWER_PREFIXES):
        split = name.startswith("visual.") and _SPLIT_IN_VISION.search(name)
        return Kept("towers", "split" if split else "copy", None)
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return Kept("embeddings", "vocabulary", None)
    match = _LAYER.fullmatch(name)
    if match is None:
        return Kept("norms and routers", "copy", None)
    mtp, layer, rest = bool(match[1]), int(match[2]), match[3]
    rule: Rule = "copy"
    part = "norms and routers"
    if rest.startswith("self_attn."):
        part, rule = "attention", "qkv" if re.search(r"\.(qkv|q|k|v)_proj\.", rest) else "split"
    elif rest.startswith("mlp.experts."):
        part, rule = "routed experts", "experts"
    elif re.match(r"mlp\.(gate|up|down)_proj\.", rest):
        part, rule = "dense MLP", "split"
    return Kept("MTP" if mtp else part, rule, layer)


def rank_weights(
    config: Mapping[str, Any], placement: Placement, tp_rank: int = 0, mtp: int = 0
) -> tuple[dict[str, int], ...]:
    """Bytes by part that a rank keeps, one dict for each pipeline stage.

    Args:
        config: a config.json dict.
        tp_rank: all ranks with this number within their attention replica hold as many bytes.
        mtp: MTP layers in use; those of the checkpoint beyond are not loaded.
    """
    geometry = TextGeometry.from_config(config)
    stages = stage_layers(geometry.num_layers, placement.pp)
    of_stage = {layer: i for i, layers in enumerate(stages) for layer in layers}
    found = [Counter(dict.fromkeys(PARTS, 0)) for _ in stages]
    vision = VisionGeometry.from_config(config)
    last = len(stages) - 1
    for (kept, name), size in _grouped(json.dumps(config)).items():
        if kept.part == "MTP" and (kept.layer is None or kept.layer >= mtp):
            continue
        size = _share(kept, name, size, geometry, vision, placement)
        if kept.part == "towers":  # every stage builds them
            for stage in found:
                stage["towers"] += size
        elif kept.part == "MTP" or name in ("lm_head", "norm"):
            found[last][kept.part] += size
        elif kept.layer is None:
            found[0][kept.part] += size
            if last and mtp:  # the MTP layers embed on the last stage
                found[last][kept.part] += size
        else:
            found[of_stage[kept.layer]][kept.part] += size
    widths = {
        kind: _qkv_bytes(geometry, attention, placement.tp, tp_rank)
        for kind, attention in (("full", geometry.full), ("swa", geometry.swa))
    }
    for layer, is_swa in enumerate(geometry.layer_is_swa):
        found[of_stage[layer]]["attention"] += widths["swa" if is_swa else "full"]
    found[last]["MTP"] += min(mtp, geometry.num_mtp_layers) * widths["swa"]
    return tuple(dict(stage) for stage in found)


def largest_rank(
    config: Mapping[str, Any], placement: Placement, mtp: int = 0
) -> tuple[dict[str, int], ...]:
    """`rank_weights` of the rank that holds most, for each stage."""
    ranks = [rank_weights(config, placement, rank, mtp) for rank in range(placement.tp)]
    return tuple(
        max((rank[stage] for rank in ranks), key=lambda parts: sum(parts.values()))
        for stage in range(placement.pp)
    )


@lru_cache(maxsize=4)  # the list is long, and read once for each rank and placement
def _grouped(config: str) -> Counter[tuple[Kept, str]]:
    """Bytes of all tensors but Q, K and V projections, by where they go and what they are.

    `config` is the text of a config.json.
    """
    groups: Counter[tuple[Kept, str]] = Counter()
    for spec in all_tensors(json.loads(config)):
        kept = classify(spec.name)
        if kept.rule == "qkv":
            continue
        name = {"lm_head.weight": "lm_head", "model.norm.weight": "norm"}.get(spec.name, "")
        if ".attn.qkv." in spec.name:
            name = "vision qkv"
        groups[kept, name] += tensor_bytes(spec)
    return groups


def _share(
    kept: Kept,
    name: str,
    size: int,
    geometry: TextGeometry,
    vision: VisionGeometry | None,
    placement: Placement,
) -> int:
    """Bytes of a group of tensors that one rank keeps."""
    if kept.rule == "copy":
        return size
    if kept.rule == "experts":
        return size // (placement.ep if placement.ep > 1 else placement.tp)
    if kept.rule == "vocabulary":
        padded = -(-geometry.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
        return -(-padded // placement.tp) * (size // geometry.vocab_size)
    if name == "vision qkv" and (vision is None or vision.num_kv_heads % placement.tp):
        return size  # KV heads replicated: counted whole, which is an upper bound
    return -(-size // placement.tp)


def _qkv_bytes(geometry: TextGeometry, attention: AttentionGeometry, tp: int, rank: int) -> int:
    """Bytes of a layer's Q, K and V projection on `rank`, foreign rows in kept blocks included."""
    hidden, block = geometry.hidden_size, geometry.fp8_block
    if block is not None:
        chunks = geometry.qkv_chunks if geometry.fused_qkv else None
        plan = qkv.plan_rank(attention, chunks, block[0], rank, tp)
        scales = len(plan.blocks) * -(-hidden // block[1])
        size = plan.rows * hidden * ELEMENT_BYTES["fp8"] + scales * ELEMENT_BYTES["scale"]
        rows = plan.rows
    else:
        heads = qkv.rank_heads(attention, rank, tp)
        rows = len(heads.q) * attention.head_dim
        rows += len(heads.kv) * (attention.head_dim + attention.v_head_dim)
        size = rows * hidden * ELEMENT_BYTES["bf16"]
    return size + (rows * ELEMENT_BYTES["bf16"] if geometry.qk_bias else 0)
