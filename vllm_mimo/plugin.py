"""The `vllm.general_plugins` entry point: tells vLLM about this package's classes.

vLLM calls `register` in every process, sometimes more than once. Nothing of vLLM is imported
before it does.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("vllm.vllm_mimo")

MODELS = {
    "MiMoV2FlashForCausalLM": "vllm_mimo.models.text:MimoFlashForCausalLM",
    "MiMoV2ForCausalLM": "vllm_mimo.models.text:MimoV2ForCausalLM",
    "MiMoV2OmniForCausalLM": "vllm_mimo.models.omni:MimoV2OmniForCausalLM",
}
"""Architecture -> our class, imported by vLLM when a model of that architecture is built."""

_registered = False


def register() -> None:
    """Register models, configs and defaults with vLLM. Does nothing the second time.

    With an unsupported vLLM nothing is registered, so that other models stay served; a MiMo
    checkpoint is then refused with the reason. `VLLM_MIMO_CONFIG='{"enabled": false}'` or
    `VLLM_PLUGINS=""` leave vLLM as it is.
    """
    global _registered
    if _registered:
        return
    from vllm_mimo import compat
    from vllm_mimo.config import MimoConfigError, from_sources

    try:
        if not from_sources().enabled:
            logger.info("vllm-mimo is switched off by VLLM_MIMO_CONFIG")
            _registered = True
            return
        compat.check_vllm_version()
    except (compat.UnsupportedVllmError, MimoConfigError) as error:
        # Other models must not suffer: refuse MiMo checkpoints only, when one is asked for.
        from vllm_mimo.hooks.refusal import refuse_mimo

        refuse_mimo(error)
        _registered = True
        return
    from vllm.model_executor.models import ModelRegistry

    from vllm_mimo.hooks import engine_defaults, hf_config, kv_defaults, serve_defaults

    for architecture, target in MODELS.items():
        ModelRegistry.register_model(architecture, target)
    hf_config.install()
    engine_defaults.install()
    kv_defaults.install()
    serve_defaults.install()
    _registered = True
