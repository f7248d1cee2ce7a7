"""Pixels against loops over every pixel and patch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.media.files import settings
from vllm_mimo.media import images
from vllm_mimo.media.settings import MediaError
from vllm_mimo.reference import pictures as reference

VISION = settings().vision
SMALL = replace(VISION, patch_size=2, merge_size=2, image_min_pixels=16, image_max_pixels=400)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def random_picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def at(picture: np.ndarray, y: float, x: float) -> np.ndarray:
    """Between four pixels: every pixel's value is at its centre, edges go on outwards."""
    height, width = picture.shape[1:]
    y, x = max(y, 0.0), max(x, 0.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, along = y - top, x - left
    upper = picture[:, top, left] * (1 - along) + picture[:, top, right] * along
    lower = picture[:, bottom, left] * (1 - along) + picture[:, bottom, right] * along
    return upper * (1 - down) + lower * down


def naive_resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    result = np.zeros((3, height, width))
    for y in range(height):
        for x in range(width):
            source = (
                (y + 0.5) * picture.shape[1] / height - 0.5,
                (x + 0.5) * picture.shape[2] / width - 0.5,
            )
            result[:, y, x] = at(picture, *source)
    return result


def naive_patches(frames: list[np.ndarray], patch: int, merge: int, temporal: int) -> np.ndarray:
    """Patch by patch: tokens in reading order, the patches of each in reading order."""
    height, width = frames[0].shape[1:]
    unit = patch * merge
    rows = []
    for t in range(0, len(frames), temporal):
        for token_y in range(0, height, unit):
            for token_x in range(0, width, unit):
                for y in range(token_y, token_y + unit, patch):
                    for x in range(token_x, token_x + unit, patch):
                        cube = [
                            f[:, y : y + patch, x : x + patch] for f in frames[t : t + temporal]
                        ]
                        rows.append(np.stack(cube, axis=1).reshape(-1))
    return np.stack(rows)


def naive_normal(picture: np.ndarray) -> np.ndarray:
    return np.stack([(picture[c] / 255 - MEAN[c]) / STD[c] for c in range(3)])


SIZES = [(13, 7), (1, 1), (1, 9), (9, 1), (3, 5), (20, 20), (41, 37), (8, 64)]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_images_agree_with_loops(height: int, width: int) -> None:
    picture = random_picture(height, width)
    size = images.target_size(height, width, 4, 16, 400)
    small = naive_normal(naive_resize(picture.numpy().astype(float), *size))
    expected = naive_patches([small, small], 2, 2, 2)
    found, grid = images.picture_patches(picture, SMALL)
    assert grid == (1, size[0] // 2, size[1] // 2) == images.patch_counts(height, width, SMALL)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape == (grid[1] * grid[2], 3 * 2 * 2 * 2)
    assert np.abs(found.numpy() - expected).max() <= 1e-4


@pytest.mark.parametrize("size", [(1, 60), (40, 1), (33, 61)])
def test_real_patch_size_on_thin_and_odd_images(size: tuple[int, int]) -> None:
    vision = replace(VISION, image_max_pixels=64 * 1024)
    picture = random_picture(*size)
    found, grid = images.picture_patches(picture, vision)
    height, width = grid[1] * 16, grid[2] * 16
    small = naive_normal(naive_resize(picture.numpy().astype(float), height, width))
    assert np.abs(found.numpy() - naive_patches([small, small], 16, 2, 2)).max() <= 1e-4
    assert images.image_tokens(*size, vision) == len(found) // 4


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_videos_agree_with_loops(count: int) -> None:
    vision = replace(SMALL, video_min_pixels=16, video_max_pixels=400, video_total_max_pixels=250)
    frames = [random_picture(11, 18, seed) for seed in range(count)]
    limit = max(16, min(250 * 2 // count, 400))
    size = images.target_size(11, 18, 4, 16, limit)
    small = [naive_normal(naive_resize(f.numpy().astype(float), *size)) for f in frames]
    expected = naive_patches([*small, *small[-1:] * (count % 2)], 2, 2, 2)
    stacked = torch.stack(frames).permute(0, 2, 3, 1).contiguous()
    found, grid = images.video_patches(stacked.numpy(), vision)
    assert grid == images.video_grid(count, 11, 18, vision)
    assert grid[0] == (count + 1) // 2
    assert np.abs(found.numpy() - expected).max() <= 1e-4
    assert torch.equal(found, images.video_patches(stacked, vision)[0])


@pytest.mark.parametrize("step", [1, 2, 3])
def test_slices_do_not_change_a_bit(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (9, 97, 131, 3), generator=generator, dtype=torch.uint8)
    whole, grid = images.video_patches(frames, VISION)
    assert grid[0] == 5
    monkeypatch.setattr(images, "CPU_BYTES", step * 4 * 97 * 131)
    assert torch.equal(images.video_patches(frames, VISION)[0], whole)
    monkeypatch.setattr(images, "CPU_BYTES", 0)
    assert torch.equal(images.video_patches(frames, VISION)[0], whole)


def test_limits_can_be_overridden() -> None:
    picture = random_picture(100, 100)
    few, _ = images.picture_patches(picture, VISION, min_pixels=1024, max_pixels=4096)
    assert len(few) == 16
    frames = torch.zeros(4, 100, 100, 3, dtype=torch.uint8)
    _, grid = images.video_patches(frames, VISION, min_pixels=1024, total_max_pixels=8192)
    assert grid == (2, 4, 4)
    assert images.video_grid(4, 100, 100, VISION, 1024, None, 8192) == grid


def test_float64_and_half_pictures_become_float32() -> None:
    picture = random_picture(5, 6)[None]
    for dtype in (torch.float64, torch.float16, torch.int32):
        assert torch.equal(
            reference.resize(picture.to(dtype), (8, 4)), reference.resize(picture, (8, 4))
        )


@pytest.mark.parametrize(
    "frames",
    [
        torch.zeros(0, 4, 4, 3, dtype=torch.uint8),
        torch.zeros(2, 4, 4, 3),
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
    ],
)
def test_frames_of_another_form_are_refused(frames: torch.Tensor) -> None:
    with pytest.raises(MediaError, match="the frames must be uint8"):
        images.video_patches(frames, VISION)


def test_pictures_that_do_not_divide_are_refused() -> None:
    with pytest.raises(MediaError, match="resize them to multiples of 32"):
        reference.patchify(torch.zeros(2, 3, 32, 48), 16, 2, 2)
    with pytest.raises(MediaError, match="multiple of 2"):
        reference.patchify(torch.zeros(1, 3, 32, 32), 16, 2, 2)
    with pytest.raises(MediaError, match="a picture must be uint8"):
        images.picture_patches(torch.zeros(3, 8, 8), VISION)
