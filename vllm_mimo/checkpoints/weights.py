"""Checking and reshaping a stream of checkpoint tensors on its way into the model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import torch

from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.fp8 import dequantize, scale_rows
from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.checkpoints.schema import TensorSpec, is_left_alone

Weights = Iterable[tuple[str, torch.Tensor]]

_SHOWN = 5
"""Names that one error lists before it counts the rest."""


class CheckpointError(ValueError):
    """A checkpoint that is not what its config says; the message names the tensor or the file."""


def check_tensor(name: str, shape: Collection[int], specs: dict[str, TensorSpec]) -> None:
    """Raise CheckpointError when `name` is unknown or `shape` is not one of its shapes.

    Tensors of a tower that `specs` leaves out as a whole pass.
    """
    if is_left_alone(name, specs):
        return
    spec = specs.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, specs, n=1, cutoff=0.6)
        hint = f"; nearest known: '{near[0]}'" if near else ""
        raise CheckpointError(
            f"extra tensor '{name}' in the checkpoint: config.json has no place for it{hint}"
        )
    if tuple(shape) not in spec.shapes:
        expected = " or ".join(str(list(s)) for s in spec.shapes)
        raise CheckpointError(f"tensor '{name}' has shape {list(shape)}, expected {expected}")


def check_missing(seen: Collection[str], specs: dict[str, TensorSpec]) -> None:
    """Raise CheckpointError naming tensors of `specs` that are not in `seen` (nor optional).

    A checkpoint without any MTP tensor is complete; one with a part of them is not.
    """
    no_mtp = not any(specs[name].mtp for name in seen if name in specs)
    missing = [
        spec.name
        for spec in specs.values()
        if spec.name not in seen and not spec.optional and not (spec.mtp and no_mtp)
    ]
    if missing:
        raise CheckpointError(f"checkpoint lacks {len(missing)} tensor(s): {summarize(missing)}")


def summarize(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{n}'" for n in names[:_SHOWN]) + more


def checked(weights: Weights, specs: dict[str, TensorSpec], complete: bool) -> Weights:
    """Pass `weights` on, raising CheckpointError at a tensor that is extra or misshapen.

    Args:
        weights: (name, tensor) pairs.
        specs: what the checkpoint may hold, by name.
        complete: also raise at the end when a tensor was missing.
    """
    seen = set()
    for name, tensor in weights:
        check_tensor(name, tensor.shape, specs)
        seen.add(name)
        yield name, tensor
    if complete:
        check_missing(seen, specs)


class FP8Weight(NamedTuple):
    """A block-FP8 weight together with its scales."""

    module: str
    """Name without `.weight`."""
    weight: torch.Tensor
    scale: torch.Tensor


class Pairs:
    """Joins FP8 weights with their scales, in whichever order they come.

    Args:
        takes: tells of a module's name whether its tensors are joined or passed on one by one.
    """

    def __init__(self, takes: Callable[[str], bool] = lambda module: True) -> None:
        self.takes = takes
        self.waiting: dict[str, dict[str, torch.Tensor]] = {}
        """Halves whose partner has not come yet; what is left in the end is an error."""

    def join(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor] | FP8Weight]:
        """Pass tensors on, FP8 ones as soon as both halves are there."""
        for name, tensor in weights:
            module, _, kind = name.rpartition(".")
            quantized = kind == "weight_scale_inv" or tensor.dtype == torch.float8_e4m3fn
            if kind not in ("weight", "weight_scale_inv") or not (quantized and self.takes(module)):
                yield name, tensor
                continue
            entry = self.waiting.setdefault(module, {})
            entry[kind] = tensor
            if len(entry) == 2:
                del self.waiting[module]
                yield FP8Weight(module, entry["weight"], entry["weight_scale_inv"])

    def check_empty(self) -> None:
        """Raise CheckpointError when a weight came without its scale, or a scale alone."""
        if self.waiting:
            raise CheckpointError(
                "FP8 weight and scale must come together; incomplete: "
                + summarize(sorted(self.waiting))
            )


def dequantized(
    weights: Weights, geometry: TextGeometry, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Replace every block-FP8 weight and its scale by one weight of `dtype`."""
    assert geometry.fp8_block is not None
    pairs = Pairs()
    for item in pairs.join(weights):
        if not isinstance(item, FP8Weight):
            yield item
            continue
        module, weight, scale = item
        chunks = geometry.qkv_chunks if module.endswith("qkv_proj") else 1
        tiles = scale_tiles(weight, scale, geometry.fp8_block[0], chunks)
        yield f"{module}.weight", dequantize(weight, scale, geometry.fp8_block, tiles).to(dtype)
    pairs.check_empty()


def scale_tiles(weight: torch.Tensor, scale: torch.Tensor, block: int, chunks: int) -> int:
    """Tiles of a weight's scale grid: `chunks`, or 1 where the grid runs across them.

    Raises CheckpointError when the scale has the rows of neither.
    """
    rows = weight.shape[0]
    for tiles in (chunks, 1):
        if rows % tiles == 0 and scale.shape[0] == scale_rows(rows, block, tiles):
            return tiles
    raise CheckpointError(
        f"FP8 scale has {scale.shape[0]} rows for a weight of {rows}: neither one grid of "
        f"{scale_rows(rows, block)} nor {chunks} chunks"
    )


def attention_of(name: str, geometry: TextGeometry) -> AttentionGeometry | None:
    """Geometry of the layer that a tensor belongs to, None outside decoder and MTP layers.

    `name` may or may not begin with `model.`.
    """
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "mtp":
        return geometry.swa
    return geometry.attention(int(parts[1])) if parts[0] == "layers" else None


def unfused(weights: Weights, geometry: TextGeometry) -> Iterator[tuple[str, torch.Tensor]]:
    """Split unquantised fused projections into `q_proj`, `k_proj` and `v_proj`."""
    for name, tensor in weights:
        geo = attention_of(name, geometry) if ".qkv_proj." in name else None
        if geo is None:
            yield name, tensor
            continue
        for part, rows in zip("qkv", qkv.split(tensor, geo, geometry.qkv_chunks), strict=True):
            yield name.replace("qkv_proj", f"{part}_proj"), rows
