"""What goes to the model's process makes the patches that the reference makes."""

from __future__ import annotations

import pytest
import torch

from tests.media.files import settings
from vllm_mimo.media.handover import handed_over, resized_uint8
from vllm_mimo.media.images import patches, resized
from vllm_mimo.reference.pictures import frame_patches

VISION = settings().vision
SIZES = [((64, 96), (64, 96)), ((97, 131), (96, 128)), ((900, 700), (64, 32)), ((5, 7), (32, 64))]
"""Height and width before and after; the third is so much smaller that float32 is less."""


def frames(count: int, size: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (count, *size, 3), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_exact_is_the_reference_bit_by_bit(
    count: int, before: tuple[int, int], after: tuple[int, int]
) -> None:
    given = frames(count, before)
    expected, grid = frame_patches(given, after, VISION)
    sent = handed_over(given, after, "exact")
    assert sent.nbytes <= min(given.nbytes, 4 * count * 3 * after[0] * after[1])
    assert torch.equal(patches(sent, grid, VISION), expected)
    parts = [patches(sent, grid, VISION, time, time + 1) for time in range(grid[0])]
    assert torch.equal(torch.cat(parts), expected)


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_uint8_is_near_it(before: tuple[int, int], after: tuple[int, int]) -> None:
    given = frames(2, before)
    sent = handed_over(given, after, "uint8")
    assert sent.dtype == torch.uint8 and sent.shape == (2, *after, 3)
    away = (sent.permute(0, 3, 1, 2).float() - resized(given, after)).abs()
    assert away.max() <= 1.0
    assert torch.equal(sent, resized_uint8(given, after))
