"""The vision tower as served equals the plain-torch reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_mimo.media.images import picture_patches, video_patches
from vllm_mimo.media.pictures import picture_tensor
from vllm_mimo.media.settings import MediaSettings

SIZES = ((33, 47), (1, 400), (400, 1), (500, 37), (640, 480), (31, 31))
"""Height and width in pixels; sides shorter than a token's among them."""


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_pictures(size, tower, vision_reference, config):
    settings = MediaSettings.from_config(config).vision
    frames = torch.from_numpy(picture(*size))[None]
    pixels, grid = picture_patches(picture_tensor(picture(*size)), settings)
    ours = tower.embed([frames], [list(grid)])
    exact = vision_reference(pixels, torch.tensor([grid]))
    assert ours.shape == exact.shape == (grid[1] * grid[2] // 4, 128)
    assert (ours - exact).abs().max() <= 1e-4


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_videos(frames, tower, vision_reference, config):
    settings = MediaSettings.from_config(config).vision
    video = torch.from_numpy(np.stack([picture(70, 130, seed) for seed in range(frames)]))
    pixels, grid = video_patches(video, settings)
    assert grid[0] == (frames + 1) // 2
    ours = tower.embed([video], [list(grid)])
    exact = vision_reference(pixels, torch.tensor([grid]))
    assert (ours - exact).abs().max() <= 1e-4


def test_items_in_one_batch_do_not_touch_each_other(tower, config, monkeypatch):
    settings = MediaSettings.from_config(config).vision
    pixels = [torch.from_numpy(picture(*size))[None] for size in SIZES[:4]]
    pixels.append(torch.from_numpy(np.stack([picture(70, 130, seed) for seed in range(5)])))
    grids = [list(picture_patches(p[0].permute(2, 0, 1), settings)[1]) for p in pixels[:4]]
    grids.append(list(video_patches(pixels[4], settings)[1]))
    together = tower.embed(pixels, grids)
    alone = torch.cat([tower.embed([p], [g]) for p, g in zip(pixels, grids, strict=True)])
    assert (together - alone).abs().max() <= 1e-5
    monkeypatch.setattr("vllm_mimo.models.vision.PATCHES_AT_ONCE", 60)
    assert (tower.embed(pixels, grids) - together).abs().max() <= 1e-5


def test_very_thin_pictures_have_room_in_the_rotary_tables(tower):
    """16,384 patches a side are allowed by the pixel limit; vLLM's tables end at 8,192."""
    cos, sin = tower.rot_pos_emb(torch.tensor([[1, 2, 16_384]]))
    assert cos.shape == sin.shape == (32_768, 32)
    assert torch.isfinite(cos).all() and (cos[0] - cos[-1]).abs().max() > 0.1


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_rank_that_runs_the_whole_tower_keeps_all_sinks(ranks, vision_config, config, weights):
    """vLLM's attention cuts the sinks by rank also where it does not split its heads. Nothing can
    ask for that yet: `supports_encoder_tp_data` comes with the media pipeline.
    """
    from tests.loader.conftest import as_rank
    from vllm_mimo.models.vision import MimoVisionTower

    with as_rank(ranks - 1, 1):
        made = MimoVisionTower(vision_config, settings=MediaSettings.from_config(config).vision)
    assert all(block.attn.tp_rank == 0 for block in made.blocks)
