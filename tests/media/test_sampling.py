"""Frame indices and pixel limits against a restatement in exact integers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.media.files import settings
from vllm_mimo.media.sampling import frame_indices, frame_pixel_limits
from vllm_mimo.media.settings import MediaError

VISION = replace(settings().vision, min_frames=4, max_frames=3600, fps=1.0, num_frames=None)


def spread(total: int, count: int) -> list[int]:
    """`count` points from 0 to total - 1, rounded down, in integers alone."""
    if count < 2:
        return [0]
    return sorted({k * (total - 1) // (count - 1) for k in range(count)})


@pytest.mark.parametrize(
    ("total", "fps", "count"),
    [
        (1, 30, 1),
        (2, 30, 2),
        (3, 30, 2),
        (4, 30, 4),
        (5, 30, 4),
        (30, 30, 4),  # one second: the minimum
        (300, 30, 10),
        (330, 30, 10),  # eleven seconds: rounded down to even
        (3600, 1, 3600),
        (3601, 1, 3600),
        (108_000, 30, 3600),  # an hour
        (1_080_000, 30, 3600),  # ten hours: the maximum
    ],
)
def test_number_of_frames(total: int, fps: float, count: int) -> None:
    found = frame_indices(total, fps, VISION)
    assert len(found) == count
    assert found[0] == 0
    assert found[-1] == (total - 1 if count > 1 else 0)


def test_three_frames_give_the_first_and_the_last() -> None:
    assert frame_indices(3, 25.0, VISION) == [0, 2]


@given(
    total=st.integers(1, 50_000),
    rate=st.sampled_from([Fraction(30), Fraction(24), Fraction(1), Fraction(1, 4), Fraction(60)]),
    fps=st.sampled_from([0.5, 1.0, 2.0, 8.0, 1000.0]),
    least=st.integers(1, 9),
    most=st.integers(2, 5000),
)
@hypothesis_settings(max_examples=500, deadline=None)
def test_indices_follow_the_rule(
    total: int, rate: Fraction, fps: float, least: int, most: int
) -> None:
    vision = replace(VISION, min_frames=least, max_frames=most)
    wanted = Fraction(total) / rate * Fraction(fps)
    count = min(max(wanted, least + least % 2), most - most % 2, total)
    count = int(count) - int(count) % 2
    found = frame_indices(total, float(rate), vision, fps=fps)
    expected = spread(total, count)
    # The reference spreads in floating point, which may fall just below a whole number.
    assert len(found) == len(expected)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 1
    assert found == sorted(set(found))
    assert 0 <= found[0] <= found[-1] < total


def test_ntsc_rate_does_not_lose_a_frame_pair() -> None:
    # Exactly ten seconds at 30000/1001: the float of the rate must not give 9.99 seconds.
    assert len(frame_indices(3000, 30000 / 1001, VISION)) == 100


def test_overrides_go_before_the_checkpoint() -> None:
    fixed = replace(VISION, num_frames=8)
    assert len(frame_indices(300, 30, fixed)) == 8
    assert len(frame_indices(300, 30, fixed, num_frames=5)) == 4  # 2.5 pairs round to even
    assert len(frame_indices(300, 30, fixed, num_frames=7)) == 8
    assert len(frame_indices(300, 30, fixed, fps=2)) == 20
    assert len(frame_indices(300, 30, VISION, fps=2, max_frames=13)) == 12
    assert len(frame_indices(300, 30, VISION, num_frames=64, max_frames=6)) == 6
    assert frame_indices(3, 30, VISION, num_frames=64) == [0, 1, 2]
    assert frame_indices(300, 30, VISION, num_frames=1) == [0]
    assert frame_indices(300, 30, VISION, max_frames=1) == [0]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"fps": 0}, "fps is 0"),
        ({"fps": -1.0}, "fps is -1.0"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": "2"}, "fps is '2'"),
        ({"num_frames": 0}, "num_frames is 0"),
        ({"num_frames": 2.5}, "num_frames is 2.5"),
        ({"num_frames": True}, "num_frames is True"),
        ({"max_frames": -2}, "max_frames is -2"),
        ({"fps": 1, "num_frames": 4}, "exclude each other"),
    ],
)
def test_bad_overrides_are_named(overrides: dict, named: str) -> None:
    with pytest.raises(MediaError, match=named):
        frame_indices(10, 10.0, VISION, **overrides)


@pytest.mark.parametrize(
    ("total", "rate"), [(0, 30.0), (-1, 30.0), (5, 0.0), (5, float("inf")), (5, float("nan"))]
)
def test_videos_without_frames_or_rate_are_refused(total: int, rate: float) -> None:
    with pytest.raises(MediaError):
        frame_indices(total, rate, VISION)


def test_pixel_limits_share_the_total() -> None:
    vision = replace(
        VISION,
        temporal_patch_size=2,
        video_min_pixels=8192,
        video_max_pixels=1_000_000,
        video_total_max_pixels=3_000_000,
    )
    assert frame_pixel_limits(1, vision) == (8192, 1_000_000)
    assert frame_pixel_limits(6, vision) == (8192, 1_000_000)
    assert frame_pixel_limits(7, vision) == (8192, 857_142)  # 6,000,000 // 7
    assert frame_pixel_limits(3600, vision) == (8192, 8192)
    assert frame_pixel_limits(7, vision, total_max_pixels=700_000) == (8192, 200_000)
    assert frame_pixel_limits(1, vision, min_pixels=5, max_pixels=77) == (5, 77)
    with pytest.raises(MediaError, match="max_pixels is 0"):
        frame_pixel_limits(1, vision, max_pixels=0)
    with pytest.raises(MediaError, match="0 frames"):
        frame_pixel_limits(0, vision)
