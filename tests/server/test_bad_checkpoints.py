"""A broken checkpoint or configuration is refused before an engine starts, by the name of what is
wrong.

Most cases build the engine's configuration in this process, which is the first thing that both
`LLM()` and `vllm serve` do; the last ones look at a real `vllm serve`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.server.conftest import ENV
from vllm_mimo.config import ENV_VAR
from vllm_mimo.serving.process import ServerError, ServerProcess, group_members

NORM = "model.layers.2.input_layernorm.weight"


@pytest.fixture
def checkpoint(random_v25: Path, tmp_path: Path, kept_environ: None) -> Path:
    return Path(shutil.copytree(random_v25, tmp_path / "checkpoint"))


def engine_config(model: Path, **options: Any) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(model=str(model), **options).create_engine_config()


def refusal(model: Path, **options: Any) -> str:
    """What vLLM says when it is asked for this model."""
    with pytest.raises(ValueError) as caught:
        engine_config(model, **options)
    return str(caught.value)


def shard_of(folder: Path, tensor: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][tensor]


def change_shard(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_the_whole_checkpoint_is_accepted_and_gets_our_class(checkpoint: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    assert engine_config(checkpoint).model_config.architecture == "MiMoV2OmniForCausalLM"
    omni = ModelRegistry.models["MiMoV2OmniForCausalLM"]
    assert omni.module_name == "vllm_mimo.models.omni"
    # What UNTOUCHED, below, looks at in processes without the plugin.
    assert ModelRegistry.models["MiMoV2ForCausalLM"].module_name == "vllm_mimo.models.text"
    assert MODELS_CONFIG_MAP["MiMoV2ForCausalLM"].__module__ == "vllm_mimo.hooks.engine_defaults"
    assert AsyncEngineArgs.from_cli_args.__func__._vllm_mimo


def test_missing_tensor(checkpoint: Path) -> None:
    change_shard(shard_of(checkpoint, NORM), lambda tensors: tensors.pop(NORM))
    assert f"checkpoint lacks 1 tensor(s): '{NORM}'" in refusal(checkpoint)


def test_extra_tensor(checkpoint: Path) -> None:
    name = NORM.replace("weight", "bias")
    change_shard(shard_of(checkpoint, NORM), lambda tensors: tensors.update({name: torch.zeros(2)}))
    assert f"extra tensor '{name}'" in refusal(checkpoint)


def test_misshapen_tensor(checkpoint: Path) -> None:
    change_shard(
        shard_of(checkpoint, NORM), lambda tensors: tensors.update({NORM: torch.zeros(127)})
    )
    assert f"tensor '{NORM}' has shape [127], expected [128]" in refusal(checkpoint)


def test_tensor_in_a_file_that_the_index_does_not_list(checkpoint: Path) -> None:
    """The index counts: a stray file beside it is not read, so it can do no harm."""
    save_file({"stray.weight": torch.zeros(2)}, checkpoint / "stray.safetensors")
    assert engine_config(checkpoint)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_truncated_file(checkpoint: Path, kept: int) -> None:
    path = shard_of(checkpoint, NORM)
    path.write_bytes(path.read_bytes()[:kept])
    message = refusal(checkpoint)
    assert f"'{path}' is truncated" in message
    assert "Download it again" in message


def test_missing_file(checkpoint: Path) -> None:
    path = shard_of(checkpoint, NORM)
    path.unlink()
    assert f"'{path}' is missing: model.safetensors.index.json lists it" in refusal(checkpoint)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_broken_index(checkpoint: Path, text: str) -> None:
    path = checkpoint / "model.safetensors.index.json"
    path.write_text(text)
    assert f"'{path}' is no index of safetensors files" in refusal(checkpoint)


@pytest.mark.parametrize(
    "field",
    [
        "head_dim",
        "hybrid_layer_pattern",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_routed_experts",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_key_value_heads",
        "rope_theta",
        "swa_num_key_value_heads",
        "vocab_size",
    ],
)
def test_config_without_a_needed_field(checkpoint: Path, field: str) -> None:
    change_config(checkpoint, lambda config: config.pop(field))
    assert f"config field '{field}' is missing" in refusal(checkpoint)


def test_config_that_contradicts_itself(checkpoint: Path) -> None:
    change_config(checkpoint, lambda config: config.update(hybrid_layer_pattern=[0, 1]))
    assert "config field 'hybrid_layer_pattern' has 2 entries, 'num_hidden_layers' is 6" in refusal(
        checkpoint
    )


def test_unknown_key_on_the_command_line(checkpoint: Path) -> None:
    message = refusal(checkpoint, additional_config={"mimo": {"hostgib": 1}})
    assert "unknown key 'hostgib'" in message
    assert "from --additional-config mimo" in message


def test_unknown_key_in_the_environment(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, '{"hostgib": 1}')
    message = refusal(checkpoint)
    assert "unknown key 'hostgib'" in message
    assert f"from {ENV_VAR}" in message


def test_the_check_can_be_switched_off(checkpoint: Path) -> None:
    change_shard(shard_of(checkpoint, NORM), lambda tensors: tensors.pop(NORM))
    assert engine_config(checkpoint, additional_config={"mimo": {"strict_checkpoint": False}})


def test_switched_off_for_one_engine_vllms_own_class_is_built(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.models import mimo_v2

    from vllm_mimo.models.text import MimoFlashForCausalLM, MimoV2ForCausalLM

    change_shard(shard_of(checkpoint, NORM), lambda tensors: tensors.pop(NORM))
    config = engine_config(checkpoint, additional_config={"mimo": {"enabled": False}})
    for ours, theirs in (
        (MimoV2ForCausalLM, mimo_v2.MiMoV2ForCausalLM),
        (MimoFlashForCausalLM, mimo_v2.MiMoV2FlashForCausalLM),
    ):
        built = []
        # A whole model needs an engine round it: see only that vLLM's class would be the one.
        monkeypatch.setattr(
            theirs,
            "__init__",
            lambda self, *, vllm_config, prefix, built=built: built.append((vllm_config, prefix)),
        )
        assert type(ours(vllm_config=config, prefix="language_model")) is theirs
        assert built == [(config, "language_model")]


# What other vLLM processes see, each in one of their own because plugins are loaded only once.

SHOW = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
from vllm.plugins import load_general_plugins
load_general_plugins()
found = {
    "class": getattr(ModelRegistry.models["MiMoV2ForCausalLM"], "module_name", "?"),
    "defaults": MODELS_CONFIG_MAP["MiMoV2ForCausalLM"].__module__
    if "MiMoV2ForCausalLM" in MODELS_CONFIG_MAP else None,
    "wrapped": hasattr(AsyncEngineArgs.from_cli_args.__func__, "_vllm_mimo"),
}
for folder in sys.argv[1:]:
    try:
        AsyncEngineArgs(model=folder, load_format="dummy").create_engine_config()
        found[folder] = "accepted"
    except Exception as error:
        found[folder] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
OLD_VLLM = "import vllm_mimo.compat\nvllm_mimo.compat.SUPPORTED_MINORS = ((0, 99),)\n"
UNTOUCHED = {"class": "vllm.model_executor.models.mimo_v2", "defaults": None, "wrapped": False}


@pytest.fixture(scope="module")
def llama(random_v25: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model's config, which the plugin must not care about."""
    folder = tmp_path_factory.mktemp("llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(random_v25 / name, folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 2048,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def shown(random_v25: Path, llama: Path) -> dict[str, dict[str, Any]]:
    """What SHOW prints in three processes, which run side by side."""
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", script, *map(str, folders)],
            env={**os.environ, **ENV, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, script, folders, variables in (
            ("unsupported", OLD_VLLM + SHOW, (random_v25, llama), {}),
            ("not loaded", SHOW, (), {"VLLM_PLUGINS": ""}),
            ("disabled", SHOW, (), {ENV_VAR: '{"enabled": false}'}),
        )
    }
    return {name: json.loads(p.communicate()[0].splitlines()[-1]) for name, p in started.items()}


def test_wrong_vllm_refuses_mimo_with_the_supported_range_and_serves_others(
    shown: dict[str, dict[str, Any]], random_v25: Path, llama: Path
) -> None:
    found = shown["unsupported"]
    assert "vllm-mimo supports 0.32.x and 0.33.x" in found[str(random_v25)]
    assert found[str(llama)] == "accepted"
    assert (found["class"], found["wrapped"]) == (UNTOUCHED["class"], False)


@pytest.mark.parametrize("how", ["not loaded", "disabled"])
def test_switched_off_vllm_is_untouched(shown: dict[str, dict[str, Any]], how: str) -> None:
    assert shown[how] == UNTOUCHED


def failed_serve(model: Path, **variables: str) -> tuple[str, int]:
    """What a real `vllm serve` printed, and its exit code."""
    server = ServerProcess(model, env={**ENV, **variables})
    server.start()
    group = server.pid
    try:
        code = server.wait(timeout=300)
        with pytest.raises(ServerError, match="ended with exit code"):
            server.wait_until_healthy()
        return server.log(), code
    finally:
        server.stop()
        assert group_members(group) == []


def test_vllm_serve_of_a_broken_checkpoint(checkpoint: Path) -> None:
    change_shard(shard_of(checkpoint, NORM), lambda tensors: tensors.pop(NORM))
    log, code = failed_serve(checkpoint)
    assert code > 0
    assert f"checkpoint lacks 1 tensor(s): '{NORM}'" in log
    assert "EngineCore" not in log


def test_vllm_serve_with_an_unknown_key_in_the_environment(checkpoint: Path) -> None:
    """Here the plugin finds out as it is loaded, before it knows of any model."""
    log, code = failed_serve(checkpoint, **{ENV_VAR: '{"hostgib": 1}'})
    assert code > 0
    assert "unknown key 'hostgib'" in log
    assert "EngineCore" not in log
