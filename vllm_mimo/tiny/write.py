"""Write a hub-style checkpoint from float weights under the split layout's names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.fp8 import quantize
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.schema import TOWER_PREFIXES, TensorSpec, text_tensors
from vllm_mimo.checkpoints.towers import all_tensors
from vllm_mimo.tiny.tokenizer import save_tokenizer

SHARD_BYTES = 2 << 20
"""Largest safetensors file: small, so that tiny checkpoints come in several as real ones do."""


def random_state(geometry: TextGeometry, seed: int) -> dict[str, torch.Tensor]:
    """Float32 weights for every tensor of the split layout, the same for the same seed.

    Matrices keep activations near unit scale; sinks and router biases differ from zero so that
    leaving one out shows.
    """
    import dataclasses

    generator = torch.Generator().manual_seed(seed)
    plain = dataclasses.replace(geometry, fused_qkv=False, fp8_block=None)
    state = {}
    for spec in text_tensors(plain):
        noise = torch.randn(spec.shape, generator=generator)
        if spec.name.endswith("norm.weight"):
            state[spec.name] = 1 + 0.1 * noise
        elif len(spec.shape) == 2 and "embed_tokens" not in spec.name:
            state[spec.name] = noise * spec.shape[1] ** -0.5
        elif "e_score_correction_bias" in spec.name:
            state[spec.name] = 0.1 * noise
        else:
            state[spec.name] = noise
    return state


def to_layout(
    config: Mapping[str, Any], state: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Turn split float weights into the tensors that `config` asks for, in the schema's order.

    Those of towers come last.

    Raises KeyError naming a weight that `state` lacks.
    """
    geometry = TextGeometry.from_config(config)
    scales: dict[str, torch.Tensor] = {}
    for spec in all_tensors(config):
        if spec.kind == "scale":
            yield spec.name, scales.pop(spec.name)
            continue
        weight = _fused(spec, geometry, state)
        if weight.shape != spec.shape:
            raise ValueError(f"{spec.name} has shape {tuple(weight.shape)}, not {spec.shape}")
        if spec.kind == "fp8":
            assert geometry.fp8_block is not None
            tiles = geometry.qkv_chunks if "qkv_proj" in spec.name else 1
            weight, scale = quantize(weight, geometry.fp8_block, tiles)
            scales[spec.name.removesuffix("weight") + "weight_scale_inv"] = scale
        elif spec.kind == "bf16":
            weight = weight.to(torch.bfloat16)
        yield spec.name, weight.contiguous()


def _fused(
    spec: TensorSpec, geometry: TextGeometry, state: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    if "qkv_proj" not in spec.name:
        return state[spec.name]
    q, k, v = (state[spec.name.replace("qkv_proj", f"{x}_proj")] for x in "qkv")
    return qkv.fuse(q, k, v, geometry.qkv_chunks)


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write config, weights with their index, tokenizer and generation defaults.

    The towers' tensors begin a file of their own.

    Returns:
        Bytes of all weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, torch.Tensor]] = [{}]
    sizes = [0]
    towers = False
    for name, tensor in to_layout(config, state):
        starts_towers = not towers and name.startswith(TOWER_PREFIXES)
        towers |= starts_towers
        if starts_towers or (sizes[-1] and sizes[-1] + tensor.nbytes > shard_bytes):
            shards.append({})
            sizes.append(0)
        shards[-1][name] = tensor
        sizes[-1] += tensor.nbytes
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    index: dict[str, str] = {}
    for i, shard in enumerate(shards, start=1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        index |= dict.fromkeys(shard, file)
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": sum(sizes)}, "weight_map": dict(sorted(index.items()))},
    )
    write_json(folder / "config.json", dict(config))
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": [config["pad_token_id"], config["eos_token_id"]]},
    )
    save_tokenizer(tokenizer, folder, config["max_position_embeddings"])
    return sum(sizes)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a config as hub repositories hold it."""
    path.write_text(json.dumps(content, indent=2) + "\n")
