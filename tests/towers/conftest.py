"""Towers of the bundled checkpoint, as vLLM builds them and as the reference does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.loader.conftest import one_process  # noqa: F401  (a fixture)
from vllm_mimo.checkpoints.audio_tokenizer import FOLDER
from vllm_mimo.tiny.checkpoints import TowerState, read_tower_state, trained_folder


@pytest.fixture(scope="session")
def config() -> dict[str, Any]:
    return json.loads((trained_folder() / "config.json").read_text())


@pytest.fixture(scope="session")
def weights() -> TowerState:
    return read_tower_state(trained_folder())


@pytest.fixture(autouse=True)
def inside_vllm(one_process: None) -> Iterator[None]:  # noqa: F811
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        yield


def finish(module: torch.nn.Module) -> torch.nn.Module:
    """What vLLM does with a model's layers once their weights are there."""
    for layer in module.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(layer)
    return module


@pytest.fixture
def vision_config(config: dict[str, Any]) -> Any:
    from vllm.transformers_utils.configs.mimo_v2_omni import Mimo_VLVisionConfig

    return Mimo_VLVisionConfig.from_dict(config["vision_config"])


@pytest.fixture
def tower(vision_config: Any, config: dict[str, Any], weights: TowerState) -> torch.nn.Module:
    """Our vision tower, loaded."""
    from vllm_mimo.media.settings import MediaSettings
    from vllm_mimo.models.vision import MimoVisionTower

    made = MimoVisionTower(vision_config, settings=MediaSettings.from_config(config).vision)
    loaded = made.load_weights(weights.vision.items())
    assert loaded == set(dict(made.named_parameters()))
    return finish(made)


@pytest.fixture
def vision_reference(config: dict[str, Any], weights: TowerState) -> torch.nn.Module:
    from vllm_mimo.checkpoints.towers import VisionGeometry
    from vllm_mimo.reference.vision import VisionTower

    made = VisionTower(VisionGeometry.from_config(config))
    made.load_state_dict(weights.vision)
    return made


@pytest.fixture
def ears(config: dict[str, Any], weights: TowerState) -> torch.nn.Module:
    """Our audio tower, loaded."""
    from vllm_mimo.models.audio import MimoAudioTower

    made = MimoAudioTower(config["audio_config"], trained_folder() / FOLDER)
    state = {name.removeprefix("audio_encoder."): t for name, t in weights.audio.items()}
    lacking, extra = made.load_state_dict(state, strict=False)
    assert not extra and all(name.startswith("audio_tokenizer.") for name in lacking)
    return made.eval()


@pytest.fixture
def audio_reference(config: dict[str, Any], weights: TowerState) -> torch.nn.Module:
    from vllm_mimo.checkpoints.codec import TokenizerGeometry
    from vllm_mimo.checkpoints.towers import AudioGeometry
    from vllm_mimo.reference.audio import AudioTower

    made = AudioTower(
        AudioGeometry.from_config(config), TokenizerGeometry.from_config(weights.tokenizer_config)
    )
    made.load_state_dict(weights.audio | weights.tokenizer)
    return made.eval()
