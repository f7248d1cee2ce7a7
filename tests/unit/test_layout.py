"""Where pictures, times and sound of a video stand in the prompt."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mimo.media.layout import Group, format_timestamp, group_video, video_tokens
from vllm_mimo.media.settings import TokenIds

RATE = 6.25
IDS = TokenIds(
    image=1,
    video=2,
    audio=3,
    vision_start=4,
    vision_end=5,
    video_start=6,
    video_end=7,
    audio_start=8,
    audio_end=9,
)
TIME, PICTURES, SOUND = 10, [4, 2, 2, 5], [8, 3, 3, 9]


def encode(text: str) -> list[int]:
    """Digits and the colon, as ids of their own."""
    return [TIME + "0123456789:".index(character) for character in text]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00"), (59.99, "00:59"), (60, "01:00"), (3599.9, "59:59"), (6000, "100:00")],
)
def test_timestamps_round_down_and_have_no_hours(seconds: float, text: str) -> None:
    assert format_timestamp(seconds) == text


def test_without_sound_every_patch_stands_alone() -> None:
    for interleave in (0, 2, -1):
        assert group_video([0, 2, 4], 6, 0, RATE, interleave) == [
            Group(0, 1, 0, 0),
            Group(1, 1, 0, 0),
            Group(2, 1, 0, 0),
        ]


@pytest.mark.parametrize(
    ("interleave", "expected"),
    [
        # 6.25 tokens a second: the second patch begins within token 12, the third within 25.
        (0, [Group(0, 1, 0, 12), Group(1, 1, 12, 25), Group(2, 1, 25, 37), Group(3, 1, 37, 50)]),
        (4, [Group(0, 2, 0, 25), Group(2, 2, 25, 50)]),
        (5, [Group(0, 3, 0, 37), Group(3, 1, 37, 50)]),
        (100, [Group(0, 4, 0, 50)]),
        (-1, [Group(0, 4, 0, 50)]),
    ],
)
def test_sound_goes_with_the_pictures_that_it_is_heard_with(
    interleave: float, expected: list[Group]
) -> None:
    assert group_video([0, 2, 4, 6], 8, 50, RATE, interleave) == expected


def test_patches_two_seconds_apart_are_their_own_groups_of_two_seconds() -> None:
    alone = group_video([0, 2, 4, 6], 8, 50, RATE, 0)
    assert group_video([0, 2, 4, 6], 8, 50, RATE, 2) == alone


def test_a_silent_stretch_does_not_move_the_groups() -> None:
    """Groups are cut at multiples of their length on the clock, as the reference cuts them."""
    assert group_video([0, 1, 7, 8, 9], 10, 63, RATE, 4) == [
        Group(0, 2, 0, 43),
        Group(2, 1, 43, 50),
        Group(3, 2, 50, 62),
    ]


def test_sound_shorter_than_the_video_leaves_pictures_alone() -> None:
    """The reference fails here: a piece of sound of no length."""
    assert group_video([0, 2, 4, 6], 8, 20, RATE, 0) == [
        Group(0, 1, 0, 12),
        Group(1, 1, 12, 20),
        Group(2, 1, 20, 20),
        Group(3, 1, 20, 20),
    ]


@pytest.mark.parametrize("interleave", [0, 2, -1])
def test_sound_longer_than_the_video_ends_with_it(interleave: float) -> None:
    groups = group_video([0, 2], 4, 1000, RATE, interleave)
    assert groups[-1].sound_end == 25


@pytest.mark.parametrize("interleave", [0, 2, -1])
def test_sound_before_a_late_first_frame_is_left_out(interleave: float) -> None:
    assert group_video([3, 5], 7, 1000, RATE, interleave)[0].sound_start == 18


def test_a_first_frame_before_time_0() -> None:
    assert group_video([-0.5, 1.5], 3.5, 1000, RATE, 0) == [Group(0, 1, 0, 9), Group(1, 1, 9, 21)]


def test_tokens_with_sound() -> None:
    groups = [Group(0, 2, 0, 2), Group(2, 1, 2, 2)]
    tokens, embedded = video_tokens(groups, [0.0, 2.0, 64.5], 2, IDS, encode)
    first, last = encode("00:00"), encode("01:04")
    assert tokens == [6, *first, *PICTURES, *PICTURES, *SOUND, *last, *PICTURES, 7]
    assert [t for t, e in zip(tokens, embedded, strict=True) if e] == [2, 2, 2, 2, 3, 3, 2, 2]


def test_tokens_without_sound() -> None:
    tokens, embedded = video_tokens(group_video([0, 2], 4, 0, RATE, 0), [0, 2], 2, IDS, encode)
    assert tokens == [6, *encode("00:00"), *PICTURES, *encode("00:02"), *PICTURES, 7]
    assert sum(embedded) == 4


@given(
    steps=st.lists(st.floats(0.01, 20), min_size=1, max_size=30),
    start=st.floats(0, 50),
    sound=st.integers(0, 400),
    interleave=st.sampled_from([0.0, 0.5, 2.0, 7.0, -1.0]),
    picture=st.integers(1, 5),
)
def test_every_embedding_has_its_token(
    steps: list[float], start: float, sound: int, interleave: float, picture: int
) -> None:
    times = [start + sum(steps[:i]) for i in range(len(steps))]
    end = start + sum(steps)
    groups = group_video(times, end, sound, RATE, interleave)
    # Each temporal patch is in one group, in order.
    patches = [i for group in groups for i in range(group.first, group.first + group.pictures)]
    assert patches == list(range(len(times)))
    # Pieces of sound follow each other without gap or overlap, inside the track.
    for before, after in pairwise(groups):
        assert before.sound_end == after.sound_start
    for group in groups:
        assert 0 <= group.sound_start <= group.sound_end <= sound
    tokens, embedded = video_tokens(groups, times, picture, IDS, encode)
    heard = sum(group.sound for group in groups)
    assert sum(embedded) == len(times) * picture + heard
    assert [token in (IDS.video, IDS.audio) for token in tokens] == embedded
    assert tokens.count(IDS.audio) == heard
    assert tokens.count(IDS.vision_start) == tokens.count(IDS.vision_end) == len(times)
    assert tokens.count(IDS.audio_start) == tokens.count(IDS.audio_end)
    assert tokens.count(IDS.audio_start) == sum(group.sound > 0 for group in groups)
