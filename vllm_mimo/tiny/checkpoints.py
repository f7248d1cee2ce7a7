"""Random tiny checkpoints, where the trained one is, and how to read any of them back."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.verify import weight_files
from vllm_mimo.checkpoints.weights import Weights, dequantized, unfused
from vllm_mimo.tiny.shapes import Layout, random_config
from vllm_mimo.tiny.write import random_state, write_checkpoint


def trained_folder() -> Path:
    """The trained tiny checkpoint that is installed with this package."""
    with as_file(files("vllm_mimo") / "assets" / "mimo-tiny") as folder:
        return folder


def bundled_tokenizer() -> Tokenizer:
    """The trained checkpoint's tokenizer, which the random ones share."""
    return Tokenizer.from_file(str(trained_folder() / "tokenizer.json"))


def write_random(folder: Path, layout: Layout, fp8: bool = False, seed: int = 0) -> int:
    """Write a random checkpoint with real head sizes; return the bytes of its weights."""
    tokenizer = bundled_tokenizer()
    config = random_config(layout, tokenizer, fp8)
    state = random_state(TextGeometry.from_config(config), seed)
    return write_checkpoint(folder, config, state, tokenizer)


def read_split_state(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """config.json and float32 weights of any checkpoint of the family, under split names.

    Block-FP8 weights come out de-quantised.
    """
    config = json.loads((folder / "config.json").read_text())
    geometry = TextGeometry.from_config(config)
    weights: Weights = (pair for file in weight_files(folder) for pair in load_file(file).items())
    if geometry.fp8_block is not None:
        weights = dequantized(weights, geometry, torch.float32)
    return config, {name: tensor.float() for name, tensor in unfused(weights, geometry)}
