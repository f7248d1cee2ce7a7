"""Random tiny checkpoints, where the trained one is, and how to read any of them back."""

from __future__ import annotations

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from vllm_mimo.checkpoints.audio_tokenizer import FOLDER
from vllm_mimo.checkpoints.codec import tokenizer_tensors
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.schema import TOWER_PREFIXES
from vllm_mimo.checkpoints.verify import weight_files
from vllm_mimo.checkpoints.weights import Weights, dequantized, unfused
from vllm_mimo.tiny.media import TOKENIZER_CONFIG
from vllm_mimo.tiny.shapes import WITH_TOWERS, Layout, random_config, with_towers
from vllm_mimo.tiny.towers import random_tokenizer, random_towers, write_tokenizer
from vllm_mimo.tiny.write import random_state, write_checkpoint


def trained_folder() -> Path:
    """The trained tiny checkpoint that is installed with this package."""
    with as_file(files("vllm_mimo") / "assets" / "mimo-tiny") as folder:
        return folder


def bundled_tokenizer() -> Tokenizer:
    """The trained checkpoint's tokenizer, which the random ones share."""
    return Tokenizer.from_file(str(trained_folder() / "tokenizer.json"))


def write_random(
    folder: Path, layout: Layout, fp8: bool = False, seed: int = 0, towers: bool = True
) -> int:
    """Write a random checkpoint with real head sizes; return the bytes of its weights.

    Args:
        folder: written to; files of an older checkpoint in it are replaced.
        layout: whose names and projections it has.
        fp8: block FP8 in place of bf16, except the towers, as in the real ones.
        seed: the same seed gives the same bytes.
        towers: vision, audio and the audio tokenizer, for layouts whose real checkpoints have them.
    """
    tokenizer = bundled_tokenizer()
    towers = towers and layout in WITH_TOWERS
    config = random_config(layout, tokenizer, fp8, towers)
    state = random_state(TextGeometry.from_config(config), seed)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    if towers:
        return _write_with_towers(folder, config, state, tokenizer, seed)
    return write_checkpoint(folder, config, state, tokenizer)


def add_towers(folder: Path, seed: int = 0) -> int:
    """Give a text-only checkpoint in the V2.5 layout random towers; return all weights' bytes.

    Towers that it has are replaced. The text model stays as it is.
    """
    config, state = read_split_state(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return _write_with_towers(folder, with_towers(config, tokenizer), state, tokenizer, seed)


def _write_with_towers(
    folder: Path,
    config: dict[str, Any],
    state: dict[str, torch.Tensor],
    tokenizer: Tokenizer,
    seed: int,
) -> int:
    scale = float(state["model.embed_tokens.weight"].std())
    state = {**state, **random_towers(config, scale, seed)}
    size = write_checkpoint(folder, config, state, tokenizer)
    weights = random_tokenizer(TOKENIZER_CONFIG, seed)
    return size + write_tokenizer(folder, TOKENIZER_CONFIG, weights)


def read_split_state(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """config.json and float32 text weights of any checkpoint of the family, under split names.

    Block-FP8 weights come out de-quantised. Towers are left to `read_tower_state`.
    """
    config = json.loads((folder / "config.json").read_text())
    geometry = TextGeometry.from_config(config)
    weights: Weights = (
        (name, tensor)
        for file in weight_files(folder)
        for name, tensor in load_file(file).items()
        if not name.startswith(TOWER_PREFIXES)
    )
    if geometry.fp8_block is not None:
        weights = dequantized(weights, geometry, torch.float32)
    return config, {name: tensor.float() for name, tensor in unfused(weights, geometry)}


class TowerState(NamedTuple):
    """Float32 weights by name, each as the reference's class loads them; empty for none."""

    vision: dict[str, torch.Tensor]
    """Of `reference.vision.VisionTower`: the names without `visual.`."""
    audio: dict[str, torch.Tensor]
    """`speech_embeddings.` and `audio_encoder.`."""
    tokenizer: dict[str, torch.Tensor]
    """`encoder.` of the audio tokenizer. `audio | tokenizer` is `reference.audio.AudioTower`'s."""
    tokenizer_config: dict[str, Any]
    """config.json of the audio tokenizer."""


def read_tower_state(folder: Path) -> TowerState:
    """The towers of a checkpoint and its audio tokenizer, as far as it has them."""
    found = TowerState({}, {}, {}, {})
    for file in weight_files(folder):
        for name, tensor in load_file(file).items():
            if name.startswith("visual."):
                found.vision[name.removeprefix("visual.")] = tensor.float()
            elif name.startswith(("audio_encoder.", "speech_embeddings.")):
                found.audio[name] = tensor.float()
    config = folder / FOLDER / "config.json"
    if config.is_file():
        found.tokenizer_config.update(json.loads(config.read_text()))
        read = {s.name for s in tokenizer_tensors(found.tokenizer_config) if not s.optional}
        for file in weight_files(folder / FOLDER):
            stored = load_file(file)
            found.tokenizer.update({n: t.float() for n, t in stored.items() if n in read})
    return found
