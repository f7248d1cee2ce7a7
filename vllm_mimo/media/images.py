"""From pictures to the vision tower's patches: resizing, normalising, cutting up.

Source: `smart_resize`, `get_visual_transform` and `_flatten_visual_inputs` of SGLang's MiMo-V2
processor. Everything runs on the device of its input.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from vllm_mimo.media.picture_size import (
    grid_tokens,
    image_tokens,
    patch_counts,
    target_size,
    video_grid,
    video_size,
)
from vllm_mimo.media.pictures import picture_tensor
from vllm_mimo.media.settings import CLIP_MEAN, CLIP_STD, MediaError, VisionSettings

__all__ = [
    "grid_tokens",
    "image_tokens",
    "normalize",
    "patch_counts",
    "patchify",
    "picture_patches",
    "picture_tensor",
    "resize",
    "target_size",
    "video_grid",
    "video_patches",
    "video_size",
]

SLICE_BYTES = 64 << 20
"""Of float32 input that `video_patches` works on at once (but at least one temporal patch)."""

Grid = tuple[int, int, int]
"""Patches in time, height and width."""


def resize(pictures: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Pictures (N, C, H, W) of any dtype to float32 (N, C, *size): bilinear, no antialiasing."""
    return F.interpolate(
        pictures.float(), size, mode="bilinear", align_corners=False, antialias=False
    )


def normalize(
    pictures: torch.Tensor,
    mean: tuple[float, float, float] = CLIP_MEAN,
    std: tuple[float, float, float] = CLIP_STD,
) -> torch.Tensor:
    """Pictures (..., 3, H, W), float with white at 255: less the mean, over the deviation.

    `mean` and `std` are for white at 1.
    """
    shift, scale = (
        (torch.tensor(values, dtype=torch.float32) * 255.0).to(pictures.device).view(-1, 1, 1)
        for values in (mean, std)
    )
    return (pictures - shift) / scale


def patchify(
    pictures: torch.Tensor, patch: int, merge: int, temporal: int
) -> tuple[torch.Tensor, Grid]:
    """Cut pictures (N, C, H, W) into rows, one for each patch.

    Patches of one token stand together: rows go by time, row and column of tokens, then row and
    column in the token; a row by channel, time, height, width.

    Args:
        pictures: N a multiple of `temporal`; H and W of `patch * merge`.
        patch: pixels a side.
        merge: patches a side of a token.
        temporal: pictures in one patch.

    Returns the patches (T * gh * gw, C * temporal * patch * patch) and (T, gh, gw). Raises
    MediaError for pictures that cannot be cut so.
    """
    count, channels, height, width = pictures.shape
    unit = patch * merge
    if not count or count % temporal or not height or height % unit or not width or width % unit:
        raise MediaError(
            f"{count} pictures of {height}x{width} pixels cannot be cut into patches; repeat the "
            f"last one to a multiple of {temporal} and resize them to multiples of {unit}"
        )
    grid = (count // temporal, height // patch, width // patch)
    cut = pictures.reshape(
        grid[0], temporal, channels, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch
    )
    rows = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return rows.reshape(grid[0] * grid[1] * grid[2], channels * temporal * patch * patch), grid


def picture_patches(
    picture: torch.Tensor,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> tuple[torch.Tensor, Grid]:
    """A still image, uint8 (3, H, W), as patches in float32 and their grid.

    It is repeated to fill a temporal patch. The limits are on the pixels after resizing, in place
    of the checkpoint's. Raises MediaError as `picture_size.target_size` does.
    """
    _check(picture, (3, None, None), "a picture", "(3, height, width)")
    height, width = picture.shape[1:]
    _, rows, columns = patch_counts(height, width, settings, min_pixels, max_pixels)
    size = rows * settings.patch_size, columns * settings.patch_size
    ready = normalize(resize(picture[None], size), settings.mean, settings.std)
    repeated = ready.expand(settings.temporal_patch_size, -1, -1, -1)
    return patchify(
        repeated, settings.patch_size, settings.merge_size, settings.temporal_patch_size
    )


def video_patches(
    frames: torch.Tensor | np.ndarray,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    total_max_pixels: int | None = None,
) -> tuple[torch.Tensor, Grid]:
    """A video's frames, uint8 (N, H, W, 3), as patches in float32 and their grid.

    The last frame is repeated to fill a temporal patch. Works on a few temporal patches at a time,
    so that the memory it takes beside the result does not grow with the video; the result is that
    of all at once, bit by bit. Limits as in `sampling.frame_pixel_limits`.

    Raises MediaError as `picture_size.target_size` does.
    """
    pixels = torch.from_numpy(frames) if isinstance(frames, np.ndarray) else frames
    _check(pixels, (None, None, None, 3), "the frames", "(frames, height, width, 3)")
    count, height, width, channels = pixels.shape
    limits = (min_pixels, max_pixels, total_max_pixels)
    grid = video_grid(count, height, width, settings, *limits)
    size = video_size(count, height, width, settings, *limits)
    patch, merge, temporal = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    of_one = grid[1] * grid[2]
    patches = torch.empty(
        (grid[0] * of_one, channels * temporal * patch * patch),
        dtype=torch.float32,
        device=pixels.device,
    )
    step = max(1, SLICE_BYTES // (4 * channels * temporal * height * width))
    for first in range(0, grid[0], step):
        last = min(first + step, grid[0])
        some = pixels[first * temporal : last * temporal]
        missing = (last - first) * temporal - len(some)
        if missing:
            some = torch.cat([some, some[-1:].expand(missing, -1, -1, -1)])
        ready = normalize(resize(some.permute(0, 3, 1, 2), size), settings.mean, settings.std)
        patches[first * of_one : last * of_one] = patchify(ready, patch, merge, temporal)[0]
    return patches, grid


def _check(pixels: torch.Tensor, shape: tuple[int | None, ...], what: str, form: str) -> None:
    fits = pixels.ndim == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, pixels.shape, strict=True)
    )
    if not fits or pixels.dtype != torch.uint8 or not pixels.numel():
        raise MediaError(f"{what} must be uint8 {form}, not {pixels.dtype} {tuple(pixels.shape)}")
