"""Sizes and token counts of random pictures, and of those that cannot be."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.media.files import settings
from vllm_mimo.media import images
from vllm_mimo.media.settings import MediaError

VISION = settings().vision
FACTOR = 32
SIDES = st.one_of(st.integers(1, 64), st.integers(1, 2000), st.integers(1, 20_000))


def nearest(side: Fraction) -> int:
    """Half goes to even, as in IEEE 754."""
    return round(side / FACTOR) * FACTOR


def expected_size(height: int, width: int, least: int, most: int) -> tuple[int, int] | None:
    """The rule in exact fractions and integer square roots; None where it has no answer."""
    h, w = height, width
    short = min(h, w)
    if short < FACTOR:
        h, w = (round(Fraction(side * FACTOR, short)) for side in (h, w))
    elif max(h, w) > 200 * short:
        return None
    rows, columns = nearest(Fraction(h)), nearest(Fraction(w))
    for limit in (least, most):
        for side in (h, w):
            # A root that is whole: floating point may fall on either side of it.
            square = Fraction(side * side * limit, h * w * FACTOR * FACTOR)
            assume(square.denominator > 1 or math.isqrt(square.numerator) ** 2 != square)
    if rows * columns > most:
        # floor(side / sqrt(h w / most) / factor): the largest k with
        # (k factor)^2 h w <= side^2 most
        rows, columns = (
            math.isqrt(side * side * most // (h * w * FACTOR * FACTOR)) * FACTOR for side in (h, w)
        )
    elif rows * columns < least:
        # ceil(side * sqrt(least / (h w)) / factor): the least k with
        # (k factor)^2 h w >= side^2 least
        rows, columns = (
            (math.isqrt((side * side * least - 1) // (h * w * FACTOR * FACTOR)) + 1) * FACTOR
            for side in (h, w)
        )
    return (rows, columns) if rows and columns else None


@given(height=SIDES, width=SIDES)
@hypothesis_settings(max_examples=500, deadline=None)
def test_tokens_of_random_images(height: int, width: int) -> None:
    size = expected_size(height, width, VISION.image_min_pixels, VISION.image_max_pixels)
    if size is None:
        with pytest.raises(MediaError, match=f"{height} x {width}"):
            images.image_tokens(height, width, VISION)
        return
    assert images.image_tokens(height, width, VISION) == size[0] * size[1] // FACTOR**2
    assert images.patch_counts(height, width, VISION) == (1, size[0] // 16, size[1] // 16)
    assert size[0] * size[1] <= VISION.image_max_pixels


@given(frames=st.integers(1, 4000), height=SIDES, width=SIDES)
@hypothesis_settings(max_examples=500, deadline=None)
def test_grids_of_random_videos(frames: int, height: int, width: int) -> None:
    most = max(8192, min(VISION.video_total_max_pixels * 2 // frames, VISION.video_max_pixels))
    size = expected_size(height, width, VISION.video_min_pixels, most)
    assume(size is not None)
    assert size is not None
    expected = ((frames + 1) // 2, size[0] // 16, size[1] // 16)
    grid = images.video_grid(frames, height, width, VISION)
    assert grid == expected
    assert images.grid_tokens(grid, VISION) == expected[0] * size[0] * size[1] // FACTOR**2


@given(height=st.integers(1, 90), width=st.integers(1, 90), frames=st.integers(1, 4))
@hypothesis_settings(max_examples=40, deadline=None)
def test_counts_are_those_of_the_patches(height: int, width: int, frames: int) -> None:
    picture = torch.zeros(3, height, width, dtype=torch.uint8)
    patches, grid = images.picture_patches(picture, VISION)
    assert grid == images.patch_counts(height, width, VISION)
    assert len(patches) == 4 * images.image_tokens(height, width, VISION)
    video = torch.zeros(frames, height, width, 3, dtype=torch.uint8)
    patches, grid = images.video_patches(video, VISION)
    assert grid == images.video_grid(frames, height, width, VISION)
    assert len(patches) == 4 * images.grid_tokens(grid, VISION)


def test_known_sizes() -> None:
    def size(height: int, width: int) -> tuple[int, int]:
        return images.target_size(height, width, 32, 8192, 8_388_608)

    assert size(1080, 1920) == (1088, 1920)
    assert size(2160, 3840) == (2176, 3840)  # 67.5 units go to the even 68
    assert size(48, 80) == (96, 128)  # raised to 8192 pixels
    assert size(1, 1) == (96, 96)
    assert size(3, 10) == (64, 192)  # first 32 x 107 (not 106), then raised


def test_long_pictures() -> None:
    with pytest.raises(MediaError, match="more than 200 times"):
        images.image_tokens(32, 6401, VISION)
    assert images.image_tokens(32, 6400, VISION) == 200
    assert images.image_tokens(1, 6400, VISION) == 6400  # shorter than a token: no limit
    with pytest.raises(MediaError, match=r"1 x 20000 pixels .* would become 0 x"):
        images.image_tokens(1, 20_000, VISION)


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (-1, 5)])
def test_empty_pictures_are_refused(height: int, width: int) -> None:
    with pytest.raises(MediaError, match="is empty"):
        images.image_tokens(height, width, VISION)


def test_limits_that_contradict_are_refused() -> None:
    with pytest.raises(MediaError, match="min_pixels is 4096 and max_pixels 1024"):
        images.image_tokens(64, 64, VISION, 4096, 1024)
    with pytest.raises(MediaError, match="min_pixels is 0"):
        images.image_tokens(64, 64, VISION, 0)
    narrow = replace(VISION, image_min_pixels=1)
    with pytest.raises(MediaError, match="raise max_pixels"):
        images.image_tokens(64, 64, narrow, max_pixels=1000)
