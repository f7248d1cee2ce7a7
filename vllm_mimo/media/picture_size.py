"""How large a picture becomes, and how many patches and tokens that gives, without any pixels.

Source: `smart_resize` of SGLang's MiMo-V2 processor.
"""

from __future__ import annotations

import math

from vllm_mimo.media.sampling import frame_pixel_limits
from vllm_mimo.media.settings import MediaError, VisionSettings

MAX_ASPECT = 200


def target_size(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Height and width after resizing, both multiples of `factor`.

    A side shorter than `factor` is first scaled up to it. Then both sides are rounded, or scaled
    down to at most `max_pixels` or up to at least `min_pixels`, keeping their ratio about.

    Raises MediaError for a side of 0, for a ratio above 200 (unless a side is shorter than
    `factor`), for limits that contradict each other, and where no multiple of `factor` fits.
    """
    given = f"a picture of {height} x {width} pixels (height x width)"
    if height < 1 or width < 1:
        raise MediaError(f"{given} is empty; send one with at least one pixel")
    if not 0 < min_pixels <= max_pixels:
        raise MediaError(
            f"min_pixels is {min_pixels} and max_pixels {max_pixels}; "
            "give two positive numbers of which the second is not smaller"
        )
    short, long = min(height, width), max(height, width)
    if short < factor:
        scale = factor / short
        height, width = round(height * scale), round(width * scale)
    elif long / short > MAX_ASPECT:
        raise MediaError(
            f"{given} is more than {MAX_ASPECT} times as long as wide; cut it into parts"
        )
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows, columns = (math.floor(side / shrink / factor) * factor for side in (height, width))
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows, columns = (math.ceil(side * grow / factor) * factor for side in (height, width))
    if rows < factor or columns < factor:
        raise MediaError(
            f"{given} would become {rows} x {columns} to have at most {max_pixels} pixels in "
            f"multiples of {factor}; cut it into parts or raise max_pixels"
        )
    return rows, columns


def patch_counts(
    height: int,
    width: int,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> tuple[int, int, int]:
    """Grid (1, patches high, patches wide) of an image of so many pixels. Raises MediaError."""
    rows, columns = target_size(
        height,
        width,
        settings.factor,
        settings.image_min_pixels if min_pixels is None else min_pixels,
        settings.image_max_pixels if max_pixels is None else max_pixels,
    )
    return 1, rows // settings.patch_size, columns // settings.patch_size


def image_tokens(
    height: int,
    width: int,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> int:
    """Tokens of an image of so many pixels. Raises MediaError."""
    return grid_tokens(patch_counts(height, width, settings, min_pixels, max_pixels), settings)


def video_size(
    frames: int,
    height: int,
    width: int,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    total_max_pixels: int | None = None,
) -> tuple[int, int]:
    """Height and width of each frame after resizing, for so many frames. Raises MediaError."""
    limits = frame_pixel_limits(
        frames,
        settings,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        total_max_pixels=total_max_pixels,
    )
    return target_size(height, width, settings.factor, *limits)


def video_grid(
    frames: int,
    height: int,
    width: int,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    total_max_pixels: int | None = None,
) -> tuple[int, int, int]:
    """Grid (temporal patches, patches high, patches wide) of so many frames. Raises MediaError."""
    rows, columns = video_size(
        frames, height, width, settings, min_pixels, max_pixels, total_max_pixels
    )
    temporal = -(-frames // settings.temporal_patch_size)
    return temporal, rows // settings.patch_size, columns // settings.patch_size


def grid_tokens(grid: tuple[int, int, int], settings: VisionSettings) -> int:
    """Tokens of a grid of patches, all temporal patches together."""
    return grid[0] * grid[1] * grid[2] // settings.merge_size**2
