"""Refuse MiMo checkpoints, and nothing else, when the plugin cannot work."""

from __future__ import annotations

import contextlib

from vllm_mimo.checkpoints.geometry import ARCHITECTURES


def refuse_mimo(error: Exception) -> None:
    """Make vLLM raise `error` when it is asked to load a MiMo-V2 checkpoint.

    Raises `error` at once where vLLM has no place for such a hook.
    """
    try:
        from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig
    except ImportError:
        raise error from None

    class Refusal(VerifyAndUpdateConfig):
        @staticmethod
        def verify_and_update_config(vllm_config: object) -> None:
            raise error

    for architecture in ARCHITECTURES:
        MODELS_CONFIG_MAP[architecture] = Refusal
    # Without its config class vLLM would stop earlier, at an unknown model type, and hide `error`.
    with contextlib.suppress(ImportError):
        from vllm_mimo.hooks import hf_config

        hf_config.install()
