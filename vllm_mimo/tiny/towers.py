"""Random weights for the towers and the audio tokenizer of a tiny checkpoint.

They are scaled so that a tower's output looks like text embeddings to the language model, and so
that pictures and sounds that differ stay different on the way: see `_tensor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vllm_mimo.checkpoints.audio_tokenizer import FOLDER
from vllm_mimo.checkpoints.codec import tokenizer_tensors
from vllm_mimo.checkpoints.schema import TensorSpec
from vllm_mimo.checkpoints.towers import (
    AudioGeometry,
    VisionGeometry,
    audio_tensors,
    vision_tensors,
)
from vllm_mimo.tiny.write import write_json

_SEED_OFFSET = 1 << 32
"""Keeps the towers' draws apart from the text model's of the same seed."""
_GELU_POWER = 0.425
"""Mean square of GELU(x) for x of a standard normal distribution."""
_LAST = ("visual.merger.mlp.2.weight", "audio_encoder.projection.mlp.2.weight")


def random_towers(config: Mapping[str, Any], scale: float, seed: int) -> dict[str, torch.Tensor]:
    """Float32 weights of the towers that `config` has, under the checkpoint's names.

    Args:
        config: with `vision_config`, `audio_config`, both or neither.
        scale: standard deviation that the towers' outputs shall have.
        seed: the same seed gives the same weights.
    """
    generator = torch.Generator().manual_seed(seed + _SEED_OFFSET)
    vision, audio = VisionGeometry.from_config(config), AudioGeometry.from_config(config)
    specs: list[TensorSpec] = []
    if vision is not None:
        specs += vision_tensors(vision)
    if audio is not None:
        specs += audio_tensors(audio)
    state = {spec.name: _tensor(spec, generator) for spec in specs}
    for name in _LAST:
        if name in state:
            state[name] *= scale * _GELU_POWER**-0.5
    if "audio_encoder.projection.weight" in state:
        state["audio_encoder.projection.weight"] *= scale
    if audio is not None:
        for channel in range(audio.channels):
            state[f"speech_embeddings.{channel}.weight"] *= audio.channels**-0.5
    return state


def random_tokenizer(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Float32 weights of an audio tokenizer with this config.json."""
    generator = torch.Generator().manual_seed(seed + 2 * _SEED_OFFSET)
    state: dict[str, torch.Tensor] = {}
    for spec in tokenizer_tensors(config):
        codebook, _, kind = spec.name.rpartition(".")
        if spec.optional:  # as a training with one vector per entry would leave them
            entries = state[f"{codebook}.embed"].to(torch.bfloat16).float()
            state[spec.name] = entries if kind == "embed_avg" else torch.ones(spec.shape)
        else:
            state[spec.name] = _tensor(spec, generator)
    return state


def _tensor(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """Matrices keep unit scale; norms, biases and sinks are off their neutral values."""
    noise = torch.randn(spec.shape, generator=generator)
    kind = spec.name.rpartition(".")[2]
    if kind == "bias":
        return 0.1 * noise
    if kind == "sinks" or spec.name.startswith("speech_embeddings."):
        return noise
    if kind == "embed":
        # Large enough that the nearest entry differs from frame to frame, small enough that a
        # frame's twenty codes come nearer to it one by one.
        return 0.3 * noise
    if len(spec.shape) == 1:
        return 1 + 0.1 * noise
    if "conv1" in spec.name:
        # Log-mel energies share a large offset; without this it would be all that comes through.
        noise -= noise.mean(dim=(1, 2), keepdim=True)
    return noise * math.prod(spec.shape[1:]) ** -0.5


def write_tokenizer(
    folder: Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor]
) -> int:
    """Write `audio_tokenizer/` into a checkpoint's folder; return the bytes of its weights.

    Raises KeyError naming a weight that `state` lacks.
    """
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    dtypes = {"bf16": torch.bfloat16, "f32": torch.float32}
    tensors = {
        spec.name: state[spec.name].to(dtypes[spec.kind]).contiguous()
        for spec in tokenizer_tensors(config)
    }
    weights = target / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    write_json(target / "config.json", dict(config))
    return sum(tensor.nbytes for tensor in tensors.values())
