"""From a checkpoint's tensors to this rank's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import is_pp_missing_parameter

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.schema import is_described
from vllm_mimo.checkpoints.towers import all_tensors
from vllm_mimo.checkpoints.weights import (
    CheckpointError,
    FP8Weight,
    Pairs,
    Weights,
    checked,
    dequantized,
    unfused,
)
from vllm_mimo.config import from_vllm_config
from vllm_mimo.models.projection import BlockFP8QKV

_QKV_PARTS = ("qkv_proj", "q_proj", "k_proj", "v_proj")


class CheckedLoading:
    """Put before a model class of vLLM: its checkpoint is checked on the way in."""

    config: Any
    strict: bool
    experts_filtered: bool
    loaded_once: bool

    def prepare_checks(self, vllm_config: VllmConfig) -> None:
        """Call it in `__init__`, once `nn.Module` is initialised and `config` is set."""
        self.strict = from_vllm_config(vllm_config).strict_checkpoint
        self.experts_filtered = vllm_config.parallel_config.enable_ep_weight_filter
        self.loaded_once = False

    def load_weights(self, weights: Weights) -> set[str]:
        """Load a checkpoint, or a part of one when weights are updated later.

        Raises CheckpointError naming a tensor that is extra, misshapen or, at the first load,
        missing (unless `mimo.strict_checkpoint` is off).
        """
        if self.strict:
            complete = not self.loaded_once and not self.experts_filtered
            weights = checked_against_config(weights, self.config, complete)
        loaded = super().load_weights(weights)  # type: ignore[misc]
        self.loaded_once = True
        return loaded


def load_text_weights(
    model: nn.Module,
    weights: Weights,
    load_rest: Callable[[Iterable[tuple[str, torch.Tensor]]], set[str]],
) -> set[str]:
    """Load weights named as in the checkpoint, without the leading `model.`.

    Args:
        model: the model loop, with `geometry`, `quant_config` and its layers.
        weights: (name, tensor) pairs of any layout.
        load_rest: vLLM's own loading, for what needs no special care here.

    Returns:
        Names of the parameters that were loaded.
    """
    geometry: TextGeometry = model.geometry
    # MTP layers belong to the draft model, which loads them itself.
    weights = ((name, tensor) for name, tensor in weights if not name.startswith("mtp."))
    if geometry.fp8_block is not None and model.quant_config is None:
        weights = dequantized(weights, geometry, torch.get_default_dtype())
    loaded: set[str] = set()
    rest = unfused(_without_fp8_qkv(model, weights, loaded), geometry)
    return load_rest(rest) | loaded


def _without_fp8_qkv(
    model: nn.Module, weights: Weights, loaded: set[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Load block-FP8 QKV projections on the way, and pass everything else on."""

    def takes(module: str) -> bool:
        return module.startswith("layers.") and module.rpartition(".")[2] in _QKV_PARTS

    # A pair can straddle two calls: vLLM hands weights over in groups of neighbours.
    pairs: Pairs = model.__dict__.setdefault("_fp8_pairs", Pairs(takes))
    for item in pairs.join(weights):
        if not isinstance(item, FP8Weight):
            yield item
            continue
        module, weight, scale = item
        parent, _, part = module.rpartition(".")
        target = f"{parent}.qkv_proj"
        if is_pp_missing_parameter(f"{target}.weight", model):
            continue
        projection = model.get_submodule(target)
        if not isinstance(projection, BlockFP8QKV):
            raise CheckpointError(
                f"'model.{module}' is in FP8, but config.json has no block-FP8 quantization_config"
            )
        if projection.load(part, weight, scale):
            loaded |= {f"{target}.weight", f"{target}.weight_scale_inv"}


def checked_against_config(weights: Weights, config: object, complete: bool) -> Weights:
    """Refuse tensors that a checkpoint with this config cannot hold.

    Quantisations that the schema does not describe are passed on unchecked.
    """
    section = {"quantization_config": getattr(config, "quantization_config", None)}
    if not is_described(section):
        return weights
    return checked(weights, {spec.name: spec for spec in all_tensors(config)}, complete)
