"""What changes in vLLM's configuration when the checkpoint is a MiMo-V2 one.

vLLM calls a model's entry in `MODELS_CONFIG_MAP` once, in the process that was started by the user,
before the engine exists: the right place to refuse bad input early and to set defaults.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig

from vllm_mimo.checkpoints.geometry import ARCHITECTURES
from vllm_mimo.checkpoints.schema import is_described
from vllm_mimo.config import CONFIG_ATTRIBUTE, MimoConfig, from_vllm_config
from vllm_mimo.hooks.kv_defaults import choose_kv
from vllm_mimo.hooks.media_defaults import choose_media

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.vllm_mimo")


def install() -> None:
    """Hook into vLLM's per-architecture defaults, after any entry of vLLM's own."""
    for architecture in ARCHITECTURES:
        previous = MODELS_CONFIG_MAP.get(architecture, VerifyAndUpdateConfig)
        if not issubclass(previous, MimoDefaults):
            MODELS_CONFIG_MAP[architecture] = type("MimoDefaults", (MimoDefaults, previous), {})


class MimoDefaults(VerifyAndUpdateConfig):
    """Checks and defaults of every MiMo-V2 architecture."""

    @classmethod
    def verify_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Raises MimoConfigError or CheckpointError, naming the key, tensor or file."""
        super().verify_and_update_config(vllm_config)
        config = from_vllm_config(vllm_config)
        # Where vLLM asks about media it hands on the model's own config only.
        keys = dataclasses.asdict(config)
        setattr(vllm_config.model_config.hf_config, CONFIG_ATTRIBUTE, keys)
        if not config.enabled:
            return
        if config.strict_checkpoint:
            check_local_checkpoint(vllm_config)
        choose_fp8_on_cpu(vllm_config, config)
        choose_media(vllm_config, config)
        choose_kv(vllm_config, config)


def check_local_checkpoint(vllm_config: VllmConfig) -> None:
    """Check a local checkpoint's file headers before an engine is started for it.

    Formats other than safetensors, and dummy weights, are left to vLLM.
    """
    folder = Path(vllm_config.model_config.model)
    if vllm_config.load_config.load_format not in ("auto", "hf", "safetensors"):
        return
    if not folder.is_dir() or not any(folder.glob("*.safetensors")):
        return
    from vllm_mimo.checkpoints.verify import verify_folder

    verify_folder(folder)


def choose_fp8_on_cpu(vllm_config: VllmConfig, config: MimoConfig) -> None:
    """Run a block-FP8 checkpoint on a CPU through de-quantised weights where that is better.

    vLLM's CPU kernel takes FP8 weights with bfloat16 activations and needs AMX. Everywhere else,
    and always in float32, weights are de-quantised to the model's dtype as they are loaded.
    """
    import torch
    from vllm.platforms import current_platform

    model = vllm_config.model_config
    section = {"quantization_config": getattr(model.hf_config, "quantization_config", None)}
    if not current_platform.is_cpu() or not section["quantization_config"]:
        return
    if not is_described(section):
        return
    has_amx = torch.cpu._is_amx_tile_supported()
    native = config.fp8_on_cpu == "native" or (
        config.fp8_on_cpu == "auto" and has_amx and model.dtype == torch.bfloat16
    )
    if not native:
        logger.info("block-FP8 weights are de-quantised to %s as they are loaded", model.dtype)
        model.quantization = None
        vllm_config.quant_config = None
