"""What a request may change of media preparation, and what it is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_mimo.media.settings import MediaError
from vllm_mimo.multimodal.options import MediaOptions


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, MediaOptions(None, None, True)),
        ({"min_pixels": 4096, "max_pixels": 65536}, MediaOptions(4096, 65536, True)),
        ({"audio_in_video": False}, MediaOptions(None, None, False)),
        ({"min_pixels": None}, MediaOptions(None, None, True)),
        # vLLM's own option for other models: "no" says what ours says, in its words.
        ({"use_audio_in_video": False}, MediaOptions(None, None, False)),
        ({"use_audio_in_video": None}, MediaOptions(None, None, True)),
        ({"use_audio_in_video": False, "audio_in_video": True}, MediaOptions(None, None, True)),
        # vLLM passes these to every processor.
        (
            {"truncation": False, "padding": True, "return_tensors": "pt", "device": "cpu"},
            MediaOptions(),
        ),
    ],
)
def test_options(given: dict[str, Any], expected: MediaOptions) -> None:
    assert MediaOptions.from_kwargs(given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_pixel": 65536}, r"unknown option 'max_pixel'; known: min_pixels, max_pixels, audio"),
        ({"fps": 2}, r"unknown option 'fps'.*media_io_kwargs: fps, num_frames, max_frames"),
        ({"max_pixels": 0}, "'max_pixels' must be a positive integer"),
        ({"max_pixels": -1}, "'max_pixels' must be a positive integer"),
        ({"min_pixels": "65536"}, "'min_pixels' must be a positive integer"),
        ({"min_pixels": 65536.0}, "'min_pixels' must be a positive integer"),
        ({"min_pixels": True}, "'min_pixels' must be a positive integer"),
        ({"audio_in_video": "false"}, "'audio_in_video' must be true or false"),
        ({"audio_in_video": 1}, "'audio_in_video' must be true or false"),
        ({"audio_in_video": None}, "'audio_in_video' must be true or false"),
        ({"use_audio_in_video": True}, "a second time.*'audio_in_video'.*leave it out"),
        ({"use_audio_in_video": "no"}, "'use_audio_in_video' would send"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(MediaError, match=said):
        MediaOptions.from_kwargs(given)


def test_a_wrong_option_is_a_bad_request() -> None:
    """vLLM's server answers a ValueError with status 400, anything else with 500."""
    assert issubclass(MediaError, ValueError)
