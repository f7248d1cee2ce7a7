"""JPEG files decoded by simplejpeg are Pillow's, bit by bit, or left to Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from vllm_mimo.media.jpeg import decode_jpeg


def jpeg(mode: str = "RGB", size: tuple[int, int] = (61, 47), **options: object) -> bytes:
    """A file of smooth noise."""
    rng = np.random.default_rng(3)
    picture = Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8)).resize(size)
    file = io.BytesIO()
    picture.convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    """What vLLM's way gives."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


@pytest.mark.parametrize("quality", [30, 75, 95])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_bit_by_bit(quality: int, subsampling: int, progressive: bool) -> None:
    data = jpeg(quality=quality, subsampling=subsampling, progressive=progressive)
    assert np.array_equal(decode_jpeg(data), by_pillow(data))


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (401, 3), (700, 501)])
def test_of_any_size(size: tuple[int, int]) -> None:
    data = jpeg(size=size)
    assert np.array_equal(decode_jpeg(data), by_pillow(data))


@pytest.mark.parametrize("orientation", range(10))
def test_turned_as_exif_says(orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = jpeg(exif=exif)
    assert np.array_equal(decode_jpeg(data), by_pillow(data))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colours_are_pillows(mode: str) -> None:
    assert decode_jpeg(jpeg(mode)) is None


def test_damaged_files_and_others_are_pillows() -> None:
    data = jpeg(size=(300, 200))
    png = io.BytesIO()
    Image.new("RGB", (4, 4)).save(png, "PNG")
    for other in (b"", b"\xff\xd8", data[:20], data[: len(data) // 2], png.getvalue()):
        assert decode_jpeg(other) is None


def test_too_many_pixels_are_not_decoded() -> None:
    data = jpeg(size=(30, 20))
    assert decode_jpeg(data, 599) is None
    assert decode_jpeg(data, 600) is not None
