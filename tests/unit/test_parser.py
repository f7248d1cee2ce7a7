"""What a user hands in, as the processor gets it: checked, and with a time for every frame."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from vllm.multimodal.media import MediaWithBytes

from tests.paths import real_config
from vllm_mimo.media.settings import MediaError, MediaSettings
from vllm_mimo.multimodal.parser import MimoDataParser

FRAMES = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)


def parser(max_image_pixels: int = 10_000) -> MimoDataParser:
    settings = MediaSettings.from_config(real_config("MiMo-V2.5"))
    return MimoDataParser(settings, max_image_pixels=max_image_pixels, spatial_merge_size=2)


def parse_video(video: Any) -> tuple[Any, dict[str, Any]]:
    """Frames and metadata of one video, as `MimoProcessor` finds them."""
    items = parser().parse_mm_data({"video": video})["video"]
    assert len(items) == 1
    (data,) = items.get_processor_data()["videos"]
    return data


@pytest.mark.parametrize(
    ("metadata", "times"),
    [
        ({"timestamps": [0.0, 0.5, 3.0, 9.9]}, [0.0, 0.5, 3.0, 9.9]),
        # The frames' own times win over what an average rate says.
        ({"timestamps": [0.0, 0.5, 3.0, 9.9], "fps": 25.0}, [0.0, 0.5, 3.0, 9.9]),
        ({"fps": 25.0, "frames_indices": [0, 50, 100, 155]}, [0.0, 2.0, 4.0, 6.2]),
        ({"fps": 2.0}, [0.0, 0.5, 1.0, 1.5]),
        ({}, [0.0, 1.0, 2.0, 3.0]),
        ({"fps": 0}, [0.0, 1.0, 2.0, 3.0]),
        (None, [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_times_of_frames(metadata: dict[str, Any] | None, times: list[float]) -> None:
    frames, found = parse_video([(FRAMES, metadata)])
    assert np.array_equal(frames, FRAMES)
    assert not np.shares_memory(frames, FRAMES), "the user may write to them later"
    assert found["timestamps"] == times


@pytest.mark.parametrize(
    "video",
    [
        FRAMES,
        torch.from_numpy(FRAMES),
        list(FRAMES),
        [FRAMES],
        [Image.fromarray(frame) for frame in FRAMES],
    ],
    ids=["array", "tensor", "list of frames", "list of videos", "pictures"],
)
def test_frames_alone_count_as_taken_at_the_models_rate(video: Any) -> None:
    frames, metadata = parse_video(video)
    assert np.array_equal(np.asarray(frames), FRAMES)
    assert metadata == {"timestamps": [0.0, 1.0, 2.0, 3.0]}


def test_a_file_that_vllm_loaded_keeps_its_times_and_its_bytes() -> None:
    loaded = {"timestamps": [0.0, 1.1, 2.2, 3.3], "audio": np.ones(5, np.float32)}
    video = MediaWithBytes((FRAMES, loaded), b"the file")
    items = parser().parse_mm_data({"video": [video]})["video"]
    ((frames, metadata),) = items.get_processor_data()["videos"]
    assert frames is FRAMES
    assert metadata == loaded
    assert metadata is not loaded, "a cached item is not changed"
    known_by, _ = items.get_item_for_hash(0)
    assert known_by.original_bytes == b"the file"


@pytest.mark.parametrize(
    ("video", "said"),
    [
        ((FRAMES, {"timestamps": [0.0, 1.0]}), "4 frames came with 2 timestamps"),
        ((FRAMES, {"timestamps": []}), "4 frames came with 0 timestamps"),
        ((FRAMES, {"timestamps": [0.0, 2.0, 1.0, 3.0]}), "timestamps hold 1.0 after 2.0"),
        ((FRAMES, {"timestamps": [-1.0, 2.0, 3.0, 4.0]}), "timestamps hold -1.0 after"),
        ((FRAMES, {"timestamps": [0.0, float("nan"), 1.0, 3.0]}), "timestamps hold nan"),
        ((FRAMES, {"fps": 1.0, "frames_indices": [0, 1, 2]}), "4 frames came with 3 timestamps"),
        (FRAMES[:0], "a video without frames"),
        ((FRAMES[:0], {"timestamps": []}), "a video without frames"),
    ],
)
def test_videos_that_cannot_be_used(video: Any, said: str) -> None:
    with pytest.raises(MediaError, match=said):
        parse_video([video])


def test_a_video_that_is_cached_may_be_left_out() -> None:
    items = parser().parse_mm_data({"video": [None, FRAMES]})["video"]
    assert len(items) == 2
    assert items.get(0) is None


def test_audio_is_brought_to_the_models_rate_and_to_one_channel() -> None:
    stereo = np.stack([np.ones(48_000, np.float32), np.zeros(48_000, np.float32)])
    items = parser().parse_mm_data({"audio": [(stereo, 48_000)]})["audio"]
    samples = items.get(0)
    assert samples.shape == (24_000,)
    assert samples[1000:-1000] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("audio", "said"),
    [
        (np.zeros(0, np.float32), "no samples"),
        (np.array([0.0, np.nan, 0.1], np.float32), "NaN or infinite"),
        (np.array([0.0, np.inf], np.float32), "NaN or infinite"),
        (torch.tensor([0.0, float("-inf")]), "NaN or infinite"),
        ((np.array([0.0, np.nan], np.float32), 24_000), "NaN or infinite"),
    ],
)
def test_audio_that_cannot_be_used(audio: Any, said: str) -> None:
    with pytest.raises(MediaError, match=said):
        parser().parse_mm_data({"audio": [audio]})


def test_audio_that_is_cached_may_be_left_out() -> None:
    items = parser().parse_mm_data({"audio": [None, np.zeros(10, np.float32)]})["audio"]
    assert items.get(0) is None


def pictures(width: int, height: int) -> list[Any]:
    """A picture of that size in every form that vLLM hands on."""
    picture = Image.new("RGB", (width, height))
    data = io.BytesIO()
    picture.save(data, "PNG")
    array = np.asarray(picture)
    return [
        picture,
        MediaWithBytes(picture, data.getvalue()),
        array,
        torch.from_numpy(array.copy()).permute(2, 0, 1),
    ]


@pytest.mark.parametrize("form", range(4))
def test_pictures_may_have_as_many_pixels_as_configured(form: int) -> None:
    picture = pictures(200, 50)[form]
    assert parser(10_000).parse_mm_data({"image": [picture]})["image"].get_count() == 1
    with pytest.raises(MediaError, match=r"200x50 is 10,000 pixels, where 1 to 9,999 are taken"):
        parser(9_999).parse_mm_data({"image": [picture]})


def test_the_message_names_the_setting() -> None:
    with pytest.raises(MediaError, match=r"--additional-config '\{\"mimo\": \{\"max_image_pixels"):
        parser(1).parse_mm_data({"image": [Image.new("RGB", (2, 1))]})


def test_a_picture_without_pixels() -> None:
    with pytest.raises(MediaError, match="0x8 is 0 pixels"):
        parser().parse_mm_data({"image": [np.zeros((8, 0, 3), np.uint8)]})


def test_embeddings_of_pictures_are_left_to_vllm() -> None:
    given = {
        "image_embeds": torch.zeros(4, 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    items = parser(1).parse_mm_data({"image": given})["image"]
    assert items.get_count() == 1
