"""Pictures and videos are cut between temporal patches, within a limit, with nothing lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mimo.models.vision import slices

Grid = list[int]


@pytest.mark.parametrize(
    ("grids", "expected"),
    [
        ([], []),
        ([[1, 2, 4]], [(0, 8, [[1, 2, 4]])]),
        # Items share a slice while they fit.
        ([[1, 2, 4], [2, 2, 2]], [(0, 16, [[1, 2, 4], [2, 2, 2]])]),
        ([[1, 2, 4], [1, 2, 6]], [(0, 8, [[1, 2, 4]]), (8, 20, [[1, 2, 6]])]),
        # A video is cut between its temporal patches, and its rest shares the next slice.
        ([[5, 2, 4]], [(0, 16, [[2, 2, 4]]), (16, 32, [[2, 2, 4]]), (32, 40, [[1, 2, 4]])]),
        ([[3, 2, 4], [1, 2, 2]], [(0, 16, [[2, 2, 4]]), (16, 28, [[1, 2, 4], [1, 2, 2]])]),
        # One temporal patch above the limit has a slice to itself.
        ([[2, 4, 6]], [(0, 24, [[1, 4, 6]]), (24, 48, [[1, 4, 6]])]),
        (
            [[1, 2, 2], [1, 4, 6], [1, 2, 2]],
            [(0, 4, [[1, 2, 2]]), (4, 28, [[1, 4, 6]]), (28, 32, [[1, 2, 2]])],
        ),
    ],
    ids=str,
)
def test_slices_of_16_patches(grids: list[Grid], expected: list[tuple[int, int, list[Grid]]]):
    assert list(slices(grids, 16)) == expected


side = st.integers(1, 8).map(lambda units: 2 * units)


@given(
    grids=st.lists(st.tuples(st.integers(1, 9), side, side).map(list), max_size=6),
    limit=st.integers(1, 400),
)
def test_every_patch_once_and_in_order(grids: list[Grid], limit: int) -> None:
    before = [list(grid) for grid in grids]
    made = list(slices(grids, limit))
    assert grids == before
    end = 0
    for start, stop, part in made:
        assert start == end
        assert stop - start == sum(times * rows * columns for times, rows, columns in part) > 0
        alone = len(part) == 1 and part[0][0] == 1
        assert stop - start <= limit or alone
        end = stop
    assert end == sum(times * rows * columns for times, rows, columns in grids)
    # The temporal patches are those of the items, in their order.
    sizes = [size for _, _, part in made for times, *size in part for _ in range(times)]
    assert sizes == [size for times, *size in grids for _ in range(times)]
    # No slice could have taken the first temporal patch of the next one.
    for (start, stop, _), (_, _, following) in pairwise(made):
        assert stop - start + following[0][1] * following[0][2] > limit
