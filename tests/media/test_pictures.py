"""Every kind of picture becomes uint8 RGB or is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vllm_mimo.media.images import picture_tensor
from vllm_mimo.media.settings import MediaError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(PIXELS).permute(2, 0, 1)


@pytest.mark.parametrize(
    "picture",
    [
        Image.fromarray(PIXELS),
        PIXELS,
        CHANNELS_FIRST.numpy(),
        CHANNELS_FIRST,
        torch.from_numpy(PIXELS),
        PIXELS.astype(np.int64),
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        CHANNELS_FIRST / 255,
        PIXELS[:, ::-1][:, ::-1],
    ],
    ids=lambda p: f"{type(p).__name__}-{getattr(p, 'dtype', '')}-{getattr(p, 'shape', '')}",
)
def test_colour_pictures(picture: object) -> None:
    found = picture_tensor(picture)  # type: ignore[arg-type]
    assert found.dtype == torch.uint8
    assert torch.equal(found, CHANNELS_FIRST)


def test_order_of_axes_where_both_fit() -> None:
    cube = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert torch.equal(picture_tensor(cube), torch.from_numpy(cube).permute(2, 0, 1))
    assert torch.equal(picture_tensor(torch.from_numpy(cube)), torch.from_numpy(cube))


def test_grey_pictures() -> None:
    grey = PIXELS[:, :, 0]
    expected = torch.from_numpy(grey).expand(3, -1, -1)
    for picture in (grey, torch.from_numpy(grey), Image.fromarray(grey)):
        assert torch.equal(picture_tensor(picture), expected)


def test_sixteen_bit_grey_is_scaled() -> None:
    deep = Image.fromarray(np.array([[0, 257, 65535, 32896]], np.uint16))
    assert deep.mode == "I;16"
    assert picture_tensor(deep)[0].tolist() == [[0, 1, 255, 128]]


def test_transparency_shows_white() -> None:
    picture = Image.new("RGBA", (3, 1), (255, 0, 0, 255))
    picture.putpixel((1, 0), (0, 0, 0, 0))
    picture.putpixel((2, 0), (0, 0, 0, 128))
    red, clear, half = picture_tensor(picture)[:, 0].T.tolist()
    assert red == [255, 0, 0]
    assert clear == [255, 255, 255]
    assert half == [127, 127, 127]
    palette = Image.new("P", (1, 1), 0)
    palette.info["transparency"] = 0
    assert picture_tensor(palette)[:, 0, 0].tolist() == [255, 255, 255]
    assert picture_tensor(Image.new("LA", (1, 1), (9, 0)))[:, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("picture", "named"),
    [
        (PIXELS.astype(np.float32), "whole numbers from 0 to 255 as uint8"),
        (PIXELS.astype(np.int64) - 1, "values from -1"),
        (np.full((2, 2, 3), np.nan), "values from nan"),
        (np.zeros((2, 2, 3), bool), "is torch.bool"),
        (np.zeros((2, 2, 4), np.uint8), "convert it to RGB"),
        (np.zeros((1, 2, 2, 3), np.uint8), "convert it to RGB"),
        (np.zeros((0, 2, 3), np.uint8), "is empty"),
        (Image.new("F", (2, 2)), "mode F"),
        ("picture.png", "cannot be a str"),
    ],
)
def test_what_is_no_picture_is_refused(picture: object, named: str) -> None:
    with pytest.raises(MediaError, match=named):
        picture_tensor(picture)  # type: ignore[arg-type]


def test_pictures_that_are_too_large_are_refused() -> None:
    with pytest.raises(MediaError, match="shrink it"):
        picture_tensor(torch.zeros(1, dtype=torch.uint8).expand(3, 20_000, 20_000))
