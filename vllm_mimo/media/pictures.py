"""Any picture that a caller may hand us, as uint8 RGB of shape (3, height, width)."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from vllm_mimo.media.settings import MediaError

MAX_PICTURE_PIXELS = 1 << 28
"""Larger pictures are refused: 268 million pixels, 0.8 GB."""
WHITE = (255, 255, 255)
DEEP_MODES = ("I", "F")
"""PIL's modes whose full scale is not known."""


def picture_tensor(image: Image.Image | np.ndarray | torch.Tensor) -> torch.Tensor:
    """uint8 (3, height, width) in RGB, on the device of a tensor, else on the CPU.

    - PIL: what is transparent shows white; 16-bit grey is scaled to 8. Orientation tags are left to
      who opens the file.
    - Arrays and tensors: (height, width) in grey, (height, width, 3) or (3, height, width). Where
      both orders fit, an array is taken to end with its channels and a tensor to begin with them.
    - Integers are 0 to 255. Floating point is 0 to 1 and is scaled and rounded; values above 1 are
      refused, not guessed to be out of 255.

    Raises MediaError for anything else.
    """
    if isinstance(image, Image.Image):
        _check_size(image.height, image.width)
        return torch.from_numpy(np.array(_rgb(image))).permute(2, 0, 1)
    if isinstance(image, np.ndarray):
        return _from_pixels(torch.from_numpy(np.ascontiguousarray(image)), channels_last=True)
    if isinstance(image, torch.Tensor):
        return _from_pixels(image, channels_last=False)
    raise MediaError(
        f"a picture cannot be a {type(image).__name__}; give a PIL image, an array or a tensor"
    )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in DEEP_MODES:
        raise MediaError(
            f"a picture of mode {image.mode} has no known white; convert it to 8-bit RGB first"
        )
    if image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.float32) / 257
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, WHITE)
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def _from_pixels(pixels: torch.Tensor, channels_last: bool) -> torch.Tensor:
    given = f"a picture of shape {tuple(pixels.shape)}"
    if pixels.ndim == 2:
        pixels = pixels.expand(3, -1, -1)
    elif pixels.ndim == 3 and 3 in (pixels.shape[0], pixels.shape[2]):
        fits = pixels.shape[2] == 3 if channels_last else pixels.shape[0] != 3
        pixels = pixels.permute(2, 0, 1) if fits else pixels
    else:
        raise MediaError(
            f"{given} is neither (height, width), (height, width, 3) nor (3, height, width); "
            "convert it to RGB"
        )
    _check_size(pixels.shape[1], pixels.shape[2])
    if pixels.dtype == torch.uint8:
        return pixels
    if pixels.dtype == torch.bool or pixels.is_complex():
        raise MediaError(f"{given} is {pixels.dtype}; give uint8, or floating point from 0 to 1")
    floating = pixels.is_floating_point()
    low, high = pixels.min().item(), pixels.max().item()
    top = 1 if floating else 255
    if not (low >= 0 and high <= top):  # also NaN
        raise MediaError(
            f"{given} is {pixels.dtype} with values from {low:g} to {high:g}; give floating point "
            "from 0 to 1, or whole numbers from 0 to 255 as uint8"
        )
    return (pixels.float() * 255).round().to(torch.uint8) if floating else pixels.to(torch.uint8)


def _check_size(height: int, width: int) -> None:
    if not height or not width:
        raise MediaError(f"a picture of {height} x {width} pixels is empty; send one with pixels")
    if height * width > MAX_PICTURE_PIXELS:
        raise MediaError(
            f"a picture of {height} x {width} pixels has more than {MAX_PICTURE_PIXELS}; shrink it"
        )
