"""config.json of model type `mimo_v2` (V2.5, V2.5-Pro) without remote code.

Flash's type, `mimo_v2_flash`, is part of transformers. The hub's repositories of the others bring
their own Python for it, which would need `--trust-remote-code`.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


class MiMoV2Config(PreTrainedConfig):
    """Every field of config.json as an attribute, as vLLM's classes and `TextGeometry` read it."""

    model_type = "mimo_v2"
    keys_to_ignore_at_inference = ("past_key_values",)

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Leave `rope_theta` and its SWA twin where they are: one field cannot hold two kinds."""
        return kwargs


def install() -> None:
    """Register the config class with vLLM, which hands it on to transformers."""
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    _CONFIG_REGISTRY.setdefault(MiMoV2Config.model_type, MiMoV2Config)
