"""What a GPU holds beside weights and KV: activations, CUDA graphs, the CUDA context.

All of it is estimated; every figure carries its source, or says that it is an estimate. vLLM
measures the same things when it starts, and its log replaces the figures here.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.towers import VisionGeometry
from vllm_mimo.models.limits import PATCHES_AT_ONCE
from vllm_mimo.planner.placement import Placement

GIB = 2**30
CONTEXT_BYTES = int(1.9 * GIB)
"""CUDA context, NCCL and libraries: "non_torch_memory takes 1.88GiB" of DeepSeek-R1 on 16 H800
(vLLM issue 16766)."""

GRAPH_BYTES_PER_LAYER = int(1.2 * 2**20)
"""CUDA graphs of one batch size and layer, piecewise and whole. Calibrated on one log: 51 sizes of
DeepSeek-V4-Flash, taken to have 43 layers, took 2.51 GiB (vLLM issue 50576)."""

AUDIO_TOKENIZER_BYTES = 634 * 10**6
"""The audio tokenizer's encoder in bf16, from its published shape (24 layers of width 1024)."""

SAMPLER_COPIES = 4
"""Float32 tensors of (requests, vocabulary) that live at once while sampling: an estimate."""


@dataclass(frozen=True, slots=True)
class Item:
    """One figure of the memory table."""

    name: str
    size: int
    """Bytes."""
    source: str


def capture_sizes(
    max_num_seqs: int, batched_tokens: int, query_len: int = 1, ceiling: int = 512
) -> tuple[int, ...]:
    """Batch sizes in tokens that vLLM 0.32 captures CUDA graphs for by default.

    Args:
        query_len: tokens that a decoding request has in a step, one more than it speculates.
        ceiling: vLLM's own upper bound, 1,024 on Blackwell and 512 elsewhere.
    """
    largest = min(max_num_seqs * query_len * 2, ceiling, batched_tokens)
    sizes = {size for size in _grid(largest) if size <= largest}
    if batched_tokens <= largest:
        sizes.add(batched_tokens)
    if query_len > 1:
        counts = {*_grid(min(max_num_seqs, ceiling)), min(max_num_seqs, ceiling)}
        sizes |= {n * query_len for n in counts if n * query_len <= largest}
    elif max_num_seqs <= largest:
        sizes.add(max_num_seqs)
    return tuple(sorted(sizes))


def _grid(largest: int) -> list[int]:
    grid = [1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
    return [size for size in grid if size <= largest]


def graph_bytes(sizes: int, layers: int) -> int:
    """Bytes of the CUDA graphs of `sizes` batch sizes over `layers` layers."""
    return sizes * layers * GRAPH_BYTES_PER_LAYER


def activation_item(
    geometry: TextGeometry,
    vision: VisionGeometry | None,
    placement: Placement,
    batched_tokens: int,
    max_num_seqs: int,
) -> Item:
    """Peak of activations: the largest of decoder layer, sampler and vision tower."""
    hidden = geometry.hidden_size
    attention = max(geometry.full.qkv_rows, geometry.swa.qkv_rows) // placement.tp
    gathered = batched_tokens * placement.dp
    expert = max(hidden, 2 * geometry.moe_intermediate_size) + geometry.moe_intermediate_size
    peaks = {
        "decoder layer": batched_tokens * (4 * hidden + 2 * attention) * 2
        + gathered * (hidden + geometry.experts_per_token * expert) * 2,
        "sampler": max_num_seqs * geometry.vocab_size * 4 * SAMPLER_COPIES,
    }
    if vision is not None:
        heads = (vision.num_heads * 2 + 2 * vision.num_kv_heads) * vision.head_dim
        wide = -(-(heads + 2 * vision.intermediate_size) // placement.tp)
        peaks["vision tower"] = PATCHES_AT_ONCE * (3 * vision.hidden_size + wide) * 2
    largest = max(peaks, key=lambda name: peaks[name])
    return Item(
        "activations",
        peaks[largest],
        f"estimate: the {largest}'s tensors, of " + ", ".join(f"{n}" for n in peaks),
    )


def other_items(
    geometry: TextGeometry,
    vision: VisionGeometry | None,
    has_audio: bool,
    placement: Placement,
    batched_tokens: int,
    max_num_seqs: int,
    sizes: tuple[int, ...],
    mtp: int = 0,
) -> tuple[Item, ...]:
    """Everything on a GPU that is neither weights nor KV."""
    layers = -(-geometry.num_layers // placement.pp) + mtp
    items = [
        activation_item(geometry, vision, placement, batched_tokens, max_num_seqs),
        Item(
            "CUDA graphs",
            graph_bytes(len(sizes), layers),
            f"estimate: {len(sizes)} batch sizes up to {sizes[-1]}, {layers} layers, 1.2 MiB each "
            "(vLLM issue 50576)",
        ),
        Item("CUDA, NCCL", CONTEXT_BYTES, "one log: 1.88 GiB (vLLM issue 16766)"),
    ]
    if has_audio:
        items.append(
            Item(
                "audio tokenizer", AUDIO_TOKENIZER_BYTES, "its published shape in bf16, on each GPU"
            )
        )
    return tuple(items)
