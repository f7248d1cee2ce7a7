"""Tiny checkpoints with towers: written, added to a text model, left out, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.paths import real_config
from vllm_mimo.checkpoints.codec import TokenizerGeometry
from vllm_mimo.checkpoints.towers import AudioGeometry, VisionGeometry
from vllm_mimo.checkpoints.verify import verify_folder
from vllm_mimo.cli.main import main
from vllm_mimo.reference.audio import AudioTower
from vllm_mimo.reference.vision import VisionTower
from vllm_mimo.tiny.checkpoints import (
    add_towers,
    bundled_tokenizer,
    read_split_state,
    read_tower_state,
    trained_folder,
    write_random,
)
from vllm_mimo.tiny.shapes import LAYOUTS, random_config, trained_config

SECTIONS = ("vision_config", "audio_config", "processor_config")


def tiny_config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("section", SECTIONS)
def test_a_tiny_config_has_every_field_of_the_real_one_in_its_order(section: str):
    tiny = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)[section]
    real = real_config("MiMo-V2.5")[section]
    assert sorted(tiny) == sorted(real)
    for field, value in real.items():
        assert type(tiny[field]) is type(value), field
    for field in ("patch_size", "spatial_merge_size", "temporal_patch_size", "group_size"):
        assert tiny.get(field) == real.get(field)


def test_special_tokens_are_the_tokenizers():
    tokenizer = bundled_tokenizer()
    config = random_config("v2.5", tokenizer, fp8=False, towers=True)
    ids = config["processor_config"]
    real = real_config("MiMo-V2.5")["processor_config"]
    assert tokenizer.decode([ids["audio_start_token_id"]], False) == "<|mimo_audio_start|>"
    assert tokenizer.decode([ids["video_end_token_id"]], False) == "<|mimo_video_end|>"
    assert ids["image_token_id"] == config["image_token_id"]
    # Distinct where the real ones are.
    names = [name for name in real if name.endswith("_token_id")]
    assert len({ids[n] for n in names}) == len({real[n] for n in names}) == len(names)


def test_the_bundled_checkpoint_sees_and_hears_in_less_than_eleven_megabytes():
    folder = trained_folder()
    verify_folder(folder)
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 11e6
    config, state = tiny_config(folder), read_tower_state(folder)
    vision, audio = VisionGeometry.from_config(config), AudioGeometry.from_config(config)
    assert vision is not None and audio is not None
    VisionTower(vision).load_state_dict(state.vision)
    tower = AudioTower(audio, TokenizerGeometry.from_config(state.tokenizer_config))
    tower.load_state_dict(state.audio | state.tokenizer)
    assert {t.dtype for part in state[:3] for t in part.values()} == {torch.float32}
    # Its text fields are those that the trainer writes, in their order.
    text = trained_config(bundled_tokenizer())
    assert list(config)[: len(text)] == list(text)
    assert {name: config[name] for name in text} == text


@pytest.mark.parametrize("fp8", (False, True), ids=("bf16", "fp8"))
def test_adding_towers_leaves_the_text_model_alone(fp8: bool, tmp_path: Path):
    folder, other = tmp_path / "a", tmp_path / "b"
    write_random(folder, "v2.5", fp8, seed=3, towers=False)
    assert not read_tower_state(folder).vision and not read_tower_state(folder).tokenizer
    assert not any(section in tiny_config(folder) for section in SECTIONS)
    before = verify_folder(folder)
    config, text = read_split_state(folder)
    add_towers(folder, seed=3)
    assert verify_folder(folder) > before
    config_after, text_after = read_split_state(folder)
    assert list(config_after)[: len(config)] == list(config)
    assert text_after.keys() == text.keys()
    assert all(torch.equal(text[name], text_after[name]) for name in text)
    # The same as a checkpoint that was written with them, and again the same when done twice.
    write_random(other, "v2.5", fp8, seed=3)
    add_towers(other, seed=3)
    for path in (p for p in folder.rglob("*") if p.is_file()):
        assert (other / path.relative_to(folder)).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_v25_has_towers_and_only_if_it_shall(layout: str, tmp_path: Path, capsys):
    folder = tmp_path / "tiny"
    assert main(["tiny", str(folder), "--layout", layout]) == 0
    with_towers = layout == "v2.5"
    assert ("with towers" in capsys.readouterr().out) is with_towers
    assert bool(read_tower_state(folder).vision) is with_towers
    assert (folder / "audio_tokenizer").is_dir() is with_towers
    assert main(["tiny", str(folder), "--layout", layout, "--text-only", "--force"]) == 0
    assert not any(read_tower_state(folder))
    assert not any(section in tiny_config(folder) for section in SECTIONS)
    assert not (folder / "audio_tokenizer").exists()
    verify_folder(folder)
