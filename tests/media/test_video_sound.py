"""The sound of a video stands on the timeline of its pictures."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.media.files import Recipe, Track, tenths, tone
from vllm_mimo.media import sound
from vllm_mimo.media.settings import MediaError
from vllm_mimo.media.sound import Run, on_timeline
from vllm_mimo.media.video import decode_video, scan

RATE = 16_000


def decode(data: bytes, rate: int | None = RATE) -> np.ndarray | None:
    return decode_video(data, lambda *_: [0], audio_rate=rate).audio


def with_sound(track: Track, container: str = "mp4", codec: str = "flac") -> bytes:
    return Recipe(tenths(10), container, audio=track, audio_codec=codec).make()


def placed(waveform: np.ndarray, start: float) -> np.ndarray:
    return np.concatenate([np.zeros(round(start * RATE), np.float32), waveform])


@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("seconds", [0.3, 1.0, 4.0])  # shorter, equal, longer than the pictures
def test_sound_is_where_it_was_put(container: str, start: float, seconds: float) -> None:
    waveform = tone(seconds, RATE)
    data = with_sound((waveform, RATE, start), container)
    found = decode(data)
    assert scan(data).has_audio
    assert found is not None and found.dtype == np.float32
    expected = placed(waveform, start)
    assert len(found) == len(expected)
    assert np.abs(found - expected).max() <= 2 / 2**15


def onset(waveform: np.ndarray, rate: int) -> float:
    """Seconds at which a tone of half of full scale reaches a quarter of it."""
    return float((np.abs(waveform) > 0.25).argmax()) / rate


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("mp4", "aac", 48_000),
        ("matroska", "aac", 48_000),
        ("webm", "libopus", 48_000),
        ("mpegts", "aac", 48_000),
        ("mov", "pcm_s16le", 48_000),
        ("avi", "libmp3lame", 48_000),
    ],
)
def test_codecs_with_delay_begin_on_time(container: str, codec: str, rate: int) -> None:
    waveform = np.concatenate([np.zeros(rate // 2, np.float32), tone(1, rate)])
    pictures = {"webm": "libvpx", "avi": "mpeg4"}.get(container, "libx264")
    recipe = Recipe(tenths(10), container, pictures, audio=(waveform, rate, 0.0), audio_codec=codec)
    data = recipe.make()
    found = decode(data, 24_000)
    assert found is not None
    # A transport stream's clock starts with the encoder's delay, which is not marked there, nor in
    # AVI.
    late = {"mpegts": 1024 / rate, "avi": 1105 / rate}.get(container, 0.0)
    assert onset(found, 24_000) == pytest.approx(0.5 + late, abs=0.004)


def test_pictures_after_the_sound_in_a_transport_stream() -> None:
    waveform = tone(3, 48_000)
    recipe = Recipe(tenths(5, 2), "mpegts", audio=(waveform, 48_000, 1.0), audio_codec="aac")
    data = recipe.make()
    video = decode_video(data, lambda *_: [0], audio_rate=24_000)
    assert video.audio is not None
    # The sound's first packet is the clock's zero; its tone begins after the encoder's delay.
    assert video.times[0] - onset(video.audio, 24_000) == pytest.approx(1.0, abs=0.03)


def test_no_sound() -> None:
    silent = Recipe(tenths(5)).make()
    assert not scan(silent).has_audio
    assert decode(silent) is None
    assert decode(with_sound((tone(1, RATE), RATE, 0.0)), None) is None


def test_sound_is_resampled() -> None:
    found = decode(with_sound((tone(1, 48_000), 48_000, 0.0)), 24_000)
    assert found is not None and len(found) == 24_000
    assert np.abs(found[200:-200] - tone(1, 24_000)[200:-200]).max() <= 1e-3


def run(start: float, samples: list[float]) -> Run:
    made = Run(Fraction(start), 10)
    made.add(np.array(samples, np.float32))
    return made


def test_gaps_are_silent_and_overlaps_cut() -> None:
    runs = [run(-0.2, [9, 9, 1, 2]), run(0.5, [3, 4]), run(0.6, [9, 5])]
    found = on_timeline(runs, 10)
    assert found is not None
    assert found.tolist() == [1, 2, 0, 0, 0, 3, 4, 5]
    assert on_timeline([run(-1, [1, 2])], 10) is None
    assert on_timeline([], 10) is None


def test_a_gap_within_the_track() -> None:
    first, second = tone(0.4, RATE), tone(0.4, RATE, 700)
    joined = np.concatenate([first, np.zeros(RATE // 2, np.float32), second])
    recipe = Recipe(tenths(15), "matroska", audio=(joined, RATE, 0.0), audio_codec="pcm_s16le")
    data = recipe.make(skip_sound=(0.45, 0.85))
    found = decode(data)
    assert found is not None
    assert len(found) == len(joined)
    assert np.abs(found - joined).max() <= 2 / 2**15


def test_a_transport_stream_whose_second_part_has_sound() -> None:
    silent = Recipe(tenths(10), "mpegts").make()
    spoken = Recipe(tenths(10), "mpegts", audio=(tone(1, 48_000), 48_000, 0.0), audio_codec="aac")
    found = decode_video(silent + spoken.make(), lambda n, _: list(range(n)), audio_rate=RATE)
    assert found.total_frames == 20
    assert found.audio is not None


def test_endless_silence_is_refused() -> None:
    with pytest.raises(MediaError, match="silent for more than 3600 s"):
        on_timeline([run(1e9, [1.0])], 24_000)


def test_endless_sound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_sound((tone(2, RATE), RATE, 0.0))
    monkeypatch.setattr(sound.read_runs, "__defaults__", (1, 1))
    with pytest.raises(MediaError, match="more than 1 s of sound"):
        decode(data)


def test_threads_do_not_matter() -> None:
    data = with_sound((tone(1, RATE), RATE, 0.0))
    one, two = (
        decode_video(data, lambda n, _: list(range(n)), audio_rate=RATE, threads=threads)
        for threads in (1, 2)
    )
    assert np.array_equal(one.frames, two.frames)
    assert one.audio is not None and two.audio is not None
    assert torch.equal(torch.from_numpy(one.audio), torch.from_numpy(two.audio))
