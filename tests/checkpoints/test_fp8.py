"""Block FP8: tiled scale grids, round trips, and de-quantisation by the definition."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mimo.checkpoints.fp8 import dequantize, quantize, scale_rows

BLOCK = (128, 128)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 300), tiles=st.sampled_from((1, 2, 4)))
def test_every_element_uses_the_scale_of_its_tile_and_block(rows: int, columns: int, tiles: int):
    weight = torch.randn(rows * tiles, columns, generator=torch.Generator().manual_seed(rows))
    packed, scale = quantize(weight, BLOCK, tiles)
    assert scale.shape == (scale_rows(rows * tiles, 128, tiles), -(-columns // 128))
    restored = dequantize(packed, scale, BLOCK, tiles)
    per_tile = -(-rows // 128)
    for tile in range(tiles):
        for row in {0, rows // 2, rows - 1}:
            for column in {0, columns - 1}:
                expected = (
                    packed[tile * rows + row, column].float()
                    * scale[tile * per_tile + row // 128, column // 128]
                )
                assert restored[tile * rows + row, column] == expected


def test_the_error_of_a_round_trip_is_that_of_three_mantissa_bits():
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    packed, scale = quantize(weight, BLOCK)
    error = (dequantize(packed, scale, BLOCK) - weight).abs()
    # Half a unit in the last place: 2^-4 of the value, or of the smallest normal number.
    bound = torch.maximum(weight.abs() / 16, weight.abs().max() * 2**-6 / 448 * 4)
    assert (error <= bound).all()


def test_a_block_of_zeros_stays_zero():
    packed, scale = quantize(torch.zeros(130, 10), BLOCK)
    assert (dequantize(packed, scale, BLOCK) == 0).all()
    assert torch.isfinite(scale).all()
