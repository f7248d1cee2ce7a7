"""From frames to patches in a few plain lines of torch, all frames at once: what `media.images` has
to equal bit by bit.

Source: `get_visual_transform` and `_flatten_visual_inputs` of SGLang's MiMo-V2 processor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vllm_mimo.media.settings import CLIP_MEAN, CLIP_STD, MediaError, VisionSettings

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


def frame_patches(
    frames: torch.Tensor, size: tuple[int, int], settings: VisionSettings
) -> tuple[torch.Tensor, Grid]:
    """Frames, uint8 (N, H, W, 3), resized to `size`, as patches in float32 and their grid.

    The last one is repeated to fill a temporal patch. Raises MediaError as `patchify` does.
    """
    missing = -len(frames) % settings.temporal_patch_size
    whole = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    ready = normalize(resize(whole.permute(0, 3, 1, 2), size), settings.mean, settings.std)
    return patchify(ready, settings.patch_size, settings.merge_size, settings.temporal_patch_size)
