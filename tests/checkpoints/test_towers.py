"""Towers and audio tokenizer: their tensors in the real checkpoint, and what the check refuses."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.paths import real_config
from vllm_mimo.checkpoints.codec import TokenizerGeometry, tokenizer_tensors
from vllm_mimo.checkpoints.geometry import GeometryError, TextGeometry
from vllm_mimo.checkpoints.schema import TOWER_PREFIXES, TensorSpec, text_tensors
from vllm_mimo.checkpoints.towers import AudioGeometry, VisionGeometry, all_tensors
from vllm_mimo.checkpoints.verify import verify_folder
from vllm_mimo.checkpoints.weights import CheckpointError, checked
from vllm_mimo.hooks.hf_config import MiMoV2Config
from vllm_mimo.tiny.checkpoints import bundled_tokenizer, write_random
from vllm_mimo.tiny.shapes import random_config

LOCAL = "audio_encoder.input_local_transformer"
# The tower rows of MiMo-V2.5's public weight table: shape, and how many tensors have it.
REAL: dict[str, tuple[tuple[int, ...], int]] = {
    "speech_embeddings.*.weight": ((1280, 1024), 20),
    f"{LOCAL}.layers.*.input_layernorm.weight": ((1024,), 6),
    f"{LOCAL}.layers.*.post_attention_layernorm.weight": ((1024,), 6),
    f"{LOCAL}.layers.*.mlp.down_proj.weight": ((1024, 4096), 6),
    f"{LOCAL}.layers.*.mlp.gate_proj.weight": ((4096, 1024), 6),
    f"{LOCAL}.layers.*.mlp.up_proj.weight": ((4096, 1024), 6),
    f"{LOCAL}.layers.*.self_attn.q_proj.weight": ((1024, 1024), 6),
    f"{LOCAL}.layers.*.self_attn.k_proj.weight": ((1024, 1024), 6),
    f"{LOCAL}.layers.*.self_attn.v_proj.weight": ((1024, 1024), 6),
    f"{LOCAL}.layers.*.self_attn.o_proj.weight": ((1024, 1024), 6),
    f"{LOCAL}.layers.*.self_attn.q_proj.bias": ((1024,), 6),
    f"{LOCAL}.layers.*.self_attn.k_proj.bias": ((1024,), 6),
    f"{LOCAL}.layers.*.self_attn.v_proj.bias": ((1024,), 6),
    f"{LOCAL}.norm.weight": ((1024,), 1),
    "audio_encoder.projection.mlp.0.weight": ((16384, 4096), 1),
    "audio_encoder.projection.mlp.2.weight": ((4096, 16384), 1),
    "visual.blocks.*.attn.proj.bias": ((1280,), 28),
    "visual.blocks.*.attn.proj.weight": ((1280, 2048), 28),
    "visual.blocks.*.attn.qkv.bias": ((3072,), 28),
    "visual.blocks.*.attn.qkv.weight": ((3072, 1280), 28),
    "visual.blocks.*.attn.sinks": ((32,), 24),
    "visual.blocks.*.mlp.down_proj.bias": ((1280,), 28),
    "visual.blocks.*.mlp.down_proj.weight": ((1280, 4608), 28),
    "visual.blocks.*.mlp.gate_proj.bias": ((4608,), 28),
    "visual.blocks.*.mlp.gate_proj.weight": ((4608, 1280), 28),
    "visual.blocks.*.mlp.up_proj.bias": ((4608,), 28),
    "visual.blocks.*.mlp.up_proj.weight": ((4608, 1280), 28),
    "visual.blocks.*.norm1.weight": ((1280,), 28),
    "visual.blocks.*.norm2.weight": ((1280,), 28),
    "visual.merger.ln_q.weight": ((1280,), 1),
    "visual.merger.mlp.0.weight": ((5120, 5120), 1),
    "visual.merger.mlp.2.weight": ((4096, 5120), 1),
    "visual.patch_embed.proj.weight": ((1280, 3, 2, 16, 16), 1),
}
# The audio tokenizer that goes with it: fields of its encoder (jang 2.5.50's port of the family).
REAL_TOKENIZER: dict[str, Any] = {
    "d_model": 1024,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_skip_layer_id": 3,
    "encoder_causal": True,
    "encoder_attn_window_size": [128, 0],
    "hybrid_attention": True,
    "swa_per_block": 2,
    "kernel_size": 3,
    "stride_size": 2,
    "avg_pooler": 2,
    "rope_theta": 10000,
    "n_mels": 128,
    "num_quantizers": 20,
    "codebook_size": [1024, 1024, 256, *[128] * 17],
    "ln_type": "LayerNorm",
}


def pattern(name: str) -> str:
    return re.sub(r"(blocks|layers|speech_embeddings)\.\d+\.", r"\1.*.", name)


def tower_specs(config: Any) -> list[TensorSpec]:
    return [spec for spec in all_tensors(config) if spec.name.startswith(TOWER_PREFIXES)]


def test_tensors_of_the_real_towers():
    specs = tower_specs(real_config("MiMo-V2.5"))
    assert Counter((pattern(s.name), s.shape) for s in specs) == {
        (name, shape): count for name, (shape, count) in REAL.items()
    }
    assert {s.kind for s in specs} == {"bf16"}
    assert not [s for s in specs if s.name in {f"visual.blocks.{i}.attn.sinks" for i in (0, 9, 27)}]


def test_text_and_towers_add_up_to_the_real_checkpoint():
    specs = list(all_tensors(real_config("MiMo-V2.5")))
    assert len({s.name for s in specs}) == len(specs) == 73_081
    assert sum(math.prod(s.shape) for s in specs) == 310_775_040_000


def test_a_config_object_says_the_same_as_the_dict():
    from transformers import PreTrainedConfig

    config = real_config("MiMo-V2.5")
    assert list(all_tensors(MiMoV2Config(**config))) == list(all_tensors(config))
    nested = MiMoV2Config(**config)
    nested.vision_config = PreTrainedConfig(**config["vision_config"])
    nested.audio_config = PreTrainedConfig(**config["audio_config"])
    assert list(all_tensors(nested)) == list(all_tensors(config))


@pytest.mark.parametrize("empty", [{}, {"vision_config": None, "audio_config": {}}])
def test_a_config_without_the_sections_has_no_towers(empty: dict):
    assert VisionGeometry.from_config(empty) is None
    assert AudioGeometry.from_config(empty) is None
    config = {**random_config("v2.5", bundled_tokenizer(), fp8=False), **empty}
    assert list(all_tensors(config)) == list(text_tensors(TextGeometry.from_config(config)))


def changed(section: str, **fields: Any) -> dict[str, Any]:
    config = real_config("MiMo-V2.5")
    config[section] = {**config[section], **fields}
    return config


def test_fields_that_the_real_config_leaves_out_or_could_say_otherwise():
    geometry = VisionGeometry.from_config(real_config("MiMo-V2.5"))
    assert geometry is not None and geometry.head_dim == 64
    assert geometry.order[4:6] == ("row", "column")
    wider = VisionGeometry.from_config(changed("vision_config", qk_channels=80))
    assert wider is not None and wider.head_dim == 80
    sizes = "-".join(str(100 + i) for i in range(20))
    audio = AudioGeometry.from_config(changed("audio_config", speech_vocab_size=sizes))
    assert audio is not None and audio.vocab_sizes == tuple(range(100, 120))
    names = {s.name for s in tower_specs(changed("audio_config", projection_layers=1))}
    assert "audio_encoder.projection.weight" in names
    assert f"{LOCAL}.norm.weight" not in {
        s.name for s in tower_specs(changed("audio_config", add_post_norm=False))
    }


@pytest.mark.parametrize(
    ("section", "field", "value", "named"),
    [
        ("vision_config", "depth", None, "'vision_config.depth' is missing"),
        ("vision_config", "depth", 27, "'vision_config.vit_window_attn_types' has 28 entries"),
        ("vision_config", "num_key_value_heads", 5, "5 KV heads"),
        ("audio_config", "input_local_dim", None, "'audio_config.input_local_dim' is missing"),
        ("audio_config", "input_local_head_dim", 32, "'audio_config.input_local_dim' is 1024"),
        ("audio_config", "speech_vocab_size", "10-20", "'audio_config.speech_vocab_size' has 2"),
        ("audio_config", "projection_layers", 3, "'audio_config.projection_layers' is 3"),
    ],
)
def test_a_broken_section_is_refused_by_name(section: str, field: str, value: Any, named: str):
    with pytest.raises(GeometryError, match=re.escape(named)):
        list(all_tensors(changed(section, **{field: value})))


def test_the_real_tokenizer():
    geometry = TokenizerGeometry.from_config(REAL_TOKENIZER)
    assert geometry.windows == (128, None) * 12
    assert geometry.code_frames(100) == 25  # a second of mel frames, at 25 Hz
    assert [geometry.code_frames(n) for n in (1, 4, 5, 6000)] == [1, 1, 2, 1500]
    specs = {s.name: s for s in tokenizer_tensors(REAL_TOKENIZER)}
    # 15 tensors a layer; 9 before and behind them; one codebook and three leftovers a level.
    assert len(specs) == 24 * 15 + 9 + 20 * 4
    assert specs["encoder.quantizer.vq.layers.2._codebook.embed"].shape == (256, 1024)
    assert specs["encoder.conv1.weight"].shape == (1024, 128, 3)
    assert "encoder.layers.0.self_attn.k_proj.bias" not in specs
    with pytest.raises(GeometryError, match="'d_model' of the audio tokenizer is missing"):
        TokenizerGeometry.from_config({**REAL_TOKENIZER, "d_model": None})
    with pytest.raises(GeometryError, match="RMSNorm"):
        TokenizerGeometry.from_config({**REAL_TOKENIZER, "ln_type": "RMSNorm"})


def test_fewer_codebook_sizes_than_codebooks_repeat_the_last():
    sizes = TokenizerGeometry.from_config({**REAL_TOKENIZER, "codebook_size": [64, 32]})
    assert sizes.codebook_sizes == (64, *[32] * 19)
    same = TokenizerGeometry.from_config({**REAL_TOKENIZER, "codebook_size": 64})
    assert same.codebook_sizes == (64,) * 20


def test_a_stream_with_towers_is_checked_where_they_are_described():
    config = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)
    specs = {spec.name: spec for spec in all_tensors(config)}
    pairs = [(name, torch.empty(spec.shape, device="meta")) for name, spec in specs.items()]
    with_tokenizer = [*pairs, ("audio_tokenizer.encoder.conv1.bias", torch.empty(1))]
    assert len(list(checked(with_tokenizer, specs, complete=True))) == len(pairs) + 1
    lost = "visual.blocks.1.attn.sinks"
    with pytest.raises(CheckpointError, match=f"lacks 1 tensor.*'{lost}'"):
        list(checked([pair for pair in pairs if pair[0] != lost], specs, complete=True))
    for name in ("visual.blocks.0.attn.sinks", "audio_encoder.x", "speech_embeddings.20.weight"):
        with pytest.raises(CheckpointError, match=f"extra tensor '{name}'"):
            list(checked([(name, torch.empty(4))], specs, complete=False))
    with pytest.raises(CheckpointError, match=r"shape \[3\], expected \[4\]"):
        list(checked([(lost, torch.empty(3))], specs, complete=False))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_random(tmp_path, "v2.5")
    return tmp_path


def change_tokenizer(folder: Path, change: Any) -> None:
    path = folder / "audio_tokenizer" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def test_a_folder_with_towers_is_checked_to_the_last_tensor(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    count = verify_folder(folder)
    assert count == len(list(all_tensors(config)))
    path = max(folder.glob("model-*.safetensors"))
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    lost = tensors.pop("visual.merger.ln_q.weight")
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor.*'visual.merger.ln_q.weight'"):
        verify_folder(folder)
    save_file({**tensors, "visual.merger.ln_q.weight": lost, "visual.extra": lost.clone()}, path)
    with pytest.raises(CheckpointError, match=r"extra tensor 'visual.extra'"):
        verify_folder(folder)
    # Without the sections, the towers' tensors are nobody's business.
    for section in ("vision_config", "audio_config"):
        del config[section]
    (folder / "config.json").write_text(json.dumps(config))
    assert verify_folder(folder) == count + 1


def test_a_tokenizer_may_hold_more_than_its_encoder_and_lack_what_nothing_reads(folder: Path):
    unread = re.compile(r"_codebook\.(inited|cluster_size|embed_avg)$")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if unread.search(name)]:
            del tensors[name]
        tensors["decoder.layer_norm.weight"] = torch.ones(3)

    change_tokenizer(folder, change)
    verify_folder(folder)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("encoder.layers.3.fc2.bias", None, "lacks 1 tensor"),
        ("encoder.quantizer.vq.layers.19._codebook.embed", None, "lacks 1 tensor"),
        ("encoder.down_sample_layer.0.weight", (64, 64, 3), r"shape \[64, 64, 3\]"),
    ],
)
def test_a_broken_tokenizer_is_named(
    folder: Path, name: str, shape: tuple[int, ...] | None, message: str
):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]
        if shape is not None:
            tensors[name] = torch.zeros(shape)

    change_tokenizer(folder, change)
    with pytest.raises(CheckpointError, match=f"audio_tokenizer.*{message}") as caught:
        verify_folder(folder)
    assert name in str(caught.value)


def test_a_tokenizer_without_weights_is_refused_and_one_that_is_absent_is_not(folder: Path):
    tokenizer = folder / "audio_tokenizer"
    (tokenizer / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"audio_tokenizer.*no weights"):
        verify_folder(folder)
    (tokenizer / "pytorch_model.bin").touch()  # not a format that can be checked by its header
    verify_folder(folder)
    (tokenizer / "pytorch_model.bin").unlink()
    (tokenizer / "config.json").unlink()
    verify_folder(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_quantizers": 19, "codebook_size": [16]}, "19 codebooks"),
        ({"codebook_size": [81]}, "codebook 0 of the audio tokenizer has 81 entries"),
    ],
)
def test_codes_that_the_audio_tower_cannot_embed_are_refused(
    folder: Path, change: dict, named: str
):
    path = folder / "audio_tokenizer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(GeometryError, match=named):
        verify_folder(folder)
