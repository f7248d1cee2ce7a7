"""How media are loaded by default, and that every word of the user's wins over it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.paths import real_config
from vllm_mimo.config import MimoConfig
from vllm_mimo.hooks.media_defaults import (
    ENCODER_CACHE,
    LOADER_VARIABLE,
    PIXELS_VARIABLE,
    choose_media,
)
from vllm_mimo.media.decoders import process
from vllm_mimo.media.settings import VisionSettings


@pytest.fixture(autouse=True)
def no_variables() -> Iterator[None]:
    """What the choice sets for the processes of an engine is gone after a test."""
    with patch.dict(os.environ), patch.object(process, "_current", None):
        for name in [name for name in os.environ if name.startswith("VLLM_")]:
            del os.environ[name]
        yield


def chosen(
    video: dict[str, Any] | None = None,
    model: str = "MiMo-V2.5",
    config: MimoConfig | None = None,
    **fields: Any,
) -> dict[str, dict[str, Any]]:
    """media_io_kwargs after the choice, for a user who gave `video`."""
    hf_config = SimpleNamespace(**{**real_config(model), **fields})
    multimodal = SimpleNamespace(media_io_kwargs={} if video is None else {"video": video})
    model_config = SimpleNamespace(hf_config=hf_config, multimodal_config=multimodal)
    choose_media(SimpleNamespace(model_config=model_config), config or MimoConfig())
    return multimodal.media_io_kwargs


def test_our_loader_with_the_checkpoints_sampling() -> None:
    video = chosen()["video"]
    assert video["video_backend"] == "mimo"
    assert video["num_frames"] == -1, "vLLM's own default is 32 frames of any video"
    rate = video["sampling"].pop("audio_rate")
    assert rate == 24_000
    settings = VisionSettings(**video["sampling"])
    assert (settings.fps, settings.max_frames) == (1.0, 3600)


def test_what_is_chosen_is_what_the_loader_takes() -> None:
    """Every key reaches `load_bytes` by vLLM's media reader, but for the loader's name."""
    from vllm.multimodal.media import ImageMediaIO, VideoMediaIO

    from vllm_mimo.multimodal.video_loader import MimoVideoLoader

    video = chosen()["video"]
    reader = VideoMediaIO(ImageMediaIO(), **video)
    assert isinstance(reader.video_loader, MimoVideoLoader)
    taken = set(inspect.signature(MimoVideoLoader.load_bytes).parameters)
    assert set(video) - {"video_backend"} <= taken


@pytest.mark.parametrize(
    "given",
    [{"num_frames": 8}, {"fps": 2}, {"max_frames": 10, "fps": 0.5}, {"sampling": {"fps": 3.0}}],
)
def test_the_users_sampling_wins(given: dict[str, Any]) -> None:
    video = chosen(dict(given))["video"]
    assert given.items() <= video.items()
    assert video["video_backend"] == "mimo"


def test_how_videos_are_decoded_is_set_for_the_process_and_not_by_requests() -> None:
    video = chosen(
        config=MimoConfig(video_decode_threads=3, video_decoder="pyav", truncated_video="keep")
    )["video"]
    decoding = process.process_decoding()
    assert (decoding.backend, decoding.budget.threads, decoding.keep_truncated) == ("pyav", 3, True)
    # vLLM merges the keys of this dict with those that a request brings.
    assert set(video) == {"video_backend", "num_frames", "sampling"}
    chosen()
    assert process.process_decoding().budget.threads == len(os.sched_getaffinity(0))


def test_a_decoder_that_is_not_installed_is_named_at_the_start() -> None:
    with (
        patch.dict(sys.modules, {"decord": None}),
        pytest.raises(ImportError, match="'decord' needs the package decord"),
    ):
        chosen(config=MimoConfig(video_decoder="decord"))


def test_another_loader_of_the_users_is_left_alone() -> None:
    given = {"video_backend": "torchcodec", "num_frames": 16}
    assert chosen(dict(given)) == {"video": given}


def test_vllms_variable_for_the_loader_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOADER_VARIABLE, "opencv")
    assert chosen() == {"video": {}}
    assert chosen({"video_backend": "mimo"})["video"]["num_frames"] == -1


def test_other_kinds_of_media_are_left_alone() -> None:
    assert list(chosen()) == ["video"]


def test_sound_is_not_decoded_where_it_is_not_heard() -> None:
    without = MimoConfig(audio_in_video=False)
    assert "audio_rate" not in chosen(config=without)["video"]["sampling"]
    assert "audio_rate" not in chosen(audio_config=None)["video"]["sampling"]


def test_the_limit_of_image_sizes_is_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import envs

    chosen(config=MimoConfig(max_image_pixels=1234))
    assert os.environ[PIXELS_VARIABLE] == "1234"
    assert envs.VLLM_MAX_IMAGE_PIXELS == 1234
    monkeypatch.setenv(PIXELS_VARIABLE, "99")
    chosen(config=MimoConfig(max_image_pixels=1234))
    assert os.environ[PIXELS_VARIABLE] == "99"


@pytest.mark.parametrize(
    ("given", "expected"), [(None, ENCODER_CACHE), ("mine.Cache", "mine.Cache")]
)
def test_encoder_cache_hits_are_counted_by_vllms_cache_or_the_users_is_kept(
    given: str | None, expected: str
) -> None:
    cache = SimpleNamespace(encoder_cache_manager_cls=given)
    model = SimpleNamespace(
        hf_config=SimpleNamespace(**real_config("MiMo-V2.5")),
        multimodal_config=SimpleNamespace(media_io_kwargs={}),
    )
    choose_media(SimpleNamespace(model_config=model, ec_manager_config=cache), MimoConfig())
    assert cache.encoder_cache_manager_cls == expected


@pytest.mark.parametrize("model", ["MiMo-V2-Flash", "MiMo-V2.5-Pro"])
def test_nothing_is_chosen_for_text_models(model: str) -> None:
    assert chosen(model=model) == {}
    assert PIXELS_VARIABLE not in os.environ


def test_nothing_is_chosen_for_a_text_only_engine() -> None:
    """vLLM has no such section for models that it runs without media."""
    model = SimpleNamespace(
        hf_config=SimpleNamespace(**real_config("MiMo-V2.5")), multimodal_config=None
    )
    choose_media(SimpleNamespace(model_config=model), MimoConfig())
