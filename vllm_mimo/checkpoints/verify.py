"""Check a checkpoint's files against its config by their headers alone, before loading anything.

A safetensors file is a length, a JSON header with names, shapes and offsets, then the data. Reading
the headers of a 1 TB checkpoint takes seconds and finds truncated files and wrong tensors early.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_mimo.checkpoints.audio_tokenizer import FOLDER
from vllm_mimo.checkpoints.codec import check_fit, tokenizer_tensors
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.schema import TensorSpec, is_described
from vllm_mimo.checkpoints.towers import AudioGeometry, all_tensors
from vllm_mimo.checkpoints.weights import CheckpointError, check_missing, check_tensor

_LARGEST_HEADER = 100_000_000
"""The format's own bound, in bytes."""


def read_header(path: Path) -> dict[str, Any]:
    """Tensor name -> {dtype, shape, data_offsets} of one file.

    Raises CheckpointError naming the file when it is truncated or not safetensors.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise CheckpointError(
                f"'{path}' is truncated or not a safetensors file: {size} bytes, "
                f"header of {length} bytes announced. Download it again"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise CheckpointError(f"'{path}' has a broken safetensors header: {error}") from None
    header.pop("__metadata__", None)
    end = 8 + length + max((t["data_offsets"][1] for t in header.values()), default=0)
    if end != size:
        raise CheckpointError(
            f"'{path}' is truncated: its header describes {end} bytes, the file has {size}. "
            "Download it again"
        )
    return header


def weight_files(folder: Path) -> list[Path]:
    """The files that make up the checkpoint: the index's, or every safetensors file.

    Raises CheckpointError naming a broken index, or a file of it that is not there.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"'{index}' is no index of safetensors files: {error!r}") from None
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"'{folder / name}' is missing: {index.name} lists it")
    return [folder / name for name in names]


def verify_folder(folder: Path) -> int:
    """Check that a local checkpoint holds what its config asks for, no more and no less.

    With an audio tower, the audio tokenizer's folder is checked as well, where it is there.

    Returns:
        The number of tensors, without the audio tokenizer's. Where the schema does not describe the
        quantisation, only the files' lengths are checked.

    Raises CheckpointError naming the file or tensor, GeometryError naming a config field.
    """
    config = json.loads((folder / "config.json").read_text())
    headers = [read_header(path) for path in weight_files(folder)]
    count = sum(len(header) for header in headers)
    TextGeometry.from_config(config)
    if is_described(config):
        _check(headers, {spec.name: spec for spec in all_tensors(config)})
    audio = AudioGeometry.from_config(config)
    if audio is not None and (folder / FOLDER / "config.json").is_file():
        _verify_tokenizer(folder / FOLDER, audio)
    return count


def _verify_tokenizer(folder: Path, audio: AudioGeometry) -> None:
    """Check the audio tokenizer; what it holds beside the encoder (a decoder) is not described."""
    config = json.loads((folder / "config.json").read_text())
    check_fit(config, audio)
    specs = {spec.name: spec for spec in tokenizer_tensors(config)}
    files = weight_files(folder)
    if not files:
        if not (folder / "pytorch_model.bin").is_file():
            raise CheckpointError(f"'{folder}' has a config.json, but no weights")
        return
    headers = [read_header(path) for path in files]
    known = [{name: e for name, e in header.items() if name in specs} for header in headers]
    try:
        _check(known, specs)
    except CheckpointError as error:
        raise CheckpointError(f"'{folder}': {error}") from None


def _check(headers: Iterable[dict[str, Any]], specs: dict[str, TensorSpec]) -> None:
    seen: set[str] = set()
    for header in headers:
        for name, entry in header.items():
            check_tensor(name, entry["shape"], specs)
            seen.add(name)
    check_missing(seen, specs)
