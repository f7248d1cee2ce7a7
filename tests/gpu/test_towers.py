"""The torch-level code of the towers on a CUDA device against the same code on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

from tests.paths import real_config
from vllm_mimo.attention.window import window_attention
from vllm_mimo.checkpoints.towers import VisionGeometry
from vllm_mimo.media.settings import MediaSettings, VisionSettings
from vllm_mimo.reference.vision import VisionTower

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"

GEOMETRY = VisionGeometry(
    hidden_size=128,
    intermediate_size=256,
    out_hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    in_channels=3,
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    window=8,
    full=(True, False, False),
    order=("row", "row", "column"),
    use_sink=True,
)
PICTURES = VisionSettings(
    patch_size=16,
    merge_size=2,
    temporal_patch_size=2,
    image_min_pixels=8192,
    image_max_pixels=262_144,
    video_min_pixels=8192,
    video_max_pixels=65_536,
    video_total_max_pixels=1_048_576,
    fps=1.0,
    num_frames=None,
    min_frames=4,
    max_frames=64,
)
SOUND = MediaSettings.from_config(real_config("MiMo-V2.5")).audio


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """PyTorch lets convolutions round their inputs to TF32 unless told otherwise."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def picture(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize(("left", "right"), ((64, 64), (128, 0), (5, 5)))
def test_windowed_attention(left: int, right: int, biased: bool):
    lengths = [1, 64, 64, 65, 5000]
    q, k, v = (random(sum(lengths), heads, 64, seed=heads) for heads in (8, 2, 4))
    v = v[:, :2].contiguous()
    bias = 2 * random(8) if biased else None
    expected = window_attention(q, k, v, lengths, left, right, 0.125, bias)
    on_device = [x.to(DEVICE) for x in (q, k, v)]
    bias = bias.to(DEVICE) if bias is not None else None
    got = window_attention(*on_device, lengths, left, right, 0.125, bias)
    assert got.device.type == DEVICE
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_vision_reference():
    tower = VisionTower(GEOMETRY)
    for seed, weight in enumerate(tower.parameters()):
        fan_in = weight[0].numel() if weight.ndim > 1 else 1
        weight.copy_(random(*weight.shape, seed=seed) * fan_in**-0.5)
    grid = torch.tensor([[1, 4, 6], [3, 8, 2]])
    pixels = random(int(grid.prod(-1).sum()), GEOMETRY.patch_width)
    expected = tower(pixels, grid)
    assert expected.std() > 0.1, "an output of nothing would equal itself"
    got = copy.deepcopy(tower).to(DEVICE)(pixels.to(DEVICE), grid.to(DEVICE))
    assert got.device.type == DEVICE
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", ((300, 500), (1080, 1920), (20, 900), (64, 96)))
def test_pictures(size: tuple[int, int]):
    pytest.importorskip("PIL")
    from vllm_mimo.media import images

    made = picture(3, *size)
    expected, grid = images.picture_patches(made, PICTURES)
    got, grid_on_device = images.picture_patches(made.to(DEVICE), PICTURES)
    assert got.device.type == DEVICE
    assert grid_on_device == grid
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("frames", (1, 5, 24))
def test_videos(frames: int):
    pytest.importorskip("PIL")
    from vllm_mimo.media import images

    made = picture(frames, 180, 320, 3)
    expected, grid = images.video_patches(made, PICTURES)
    got, grid_on_device = images.video_patches(made.to(DEVICE), PICTURES)
    assert got.device.type == DEVICE
    assert grid_on_device == grid
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("samples", (1, 479, 24_000, 100_001))
def test_log_mel(samples: int):
    for package in ("av", "torchaudio"):
        pytest.importorskip(package)
    from vllm_mimo.media.audio import log_mel

    time = torch.arange(samples) / 24_000
    sound = 0.3 * torch.sin(2 * torch.pi * 440 * time) + 0.02 * random(samples)
    got = log_mel(sound.to(DEVICE), SOUND)
    assert got.device.type == DEVICE
    torch.testing.assert_close(got.cpu(), log_mel(sound, SOUND), rtol=1e-3, atol=1e-3)
