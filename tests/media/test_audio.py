"""Log-mel spectrograms, resampling and token counts against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.media.files import settings, sound_file, tone
from vllm_mimo.media import audio, resampling
from vllm_mimo.media.settings import AudioSettings, MediaError

SETTINGS = settings().audio
assert SETTINGS is not None
SOUND: AudioSettings = SETTINGS


def mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def filter_bank(rate: int, bins: int, filters: int) -> np.ndarray:
    """HTK triangles of height one over the bins' frequencies: (filters, bins)."""
    top = mel(rate / 2)
    corners = [700 * (10 ** (top * k / (filters + 1) / 2595) - 1) for k in range(filters + 2)]
    bank = np.zeros((filters, bins))
    for row in range(filters):
        low, peak, high = corners[row : row + 3]
        for column in range(bins):
            hertz = column * (rate / 2) / (bins - 1)
            rise, fall = (hertz - low) / (peak - low), (high - hertz) / (high - peak)
            bank[row, column] = max(0.0, min(rise, fall))
    return bank


def naive_log_mel(waveform: np.ndarray) -> np.ndarray:
    """Sum by sum in float64: a Hann window, a DFT as a matrix, magnitudes, the bank."""
    size, hop = 960, 240
    samples = np.pad(waveform.astype(np.float64), (0, max(0, size // 2 + 1 - len(waveform))))
    mirrored = np.pad(samples, size // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    turns = np.outer(np.arange(size // 2 + 1), np.arange(size)) % size
    matrix = np.exp(-2j * np.pi * turns / size)
    bank = filter_bank(24_000, size // 2 + 1, 128)
    rows = []
    for start in range(0, len(mirrored) - size + 1, hop):
        magnitude = np.abs(matrix @ (window * mirrored[start : start + size]))
        rows.append(np.log(np.maximum(bank @ magnitude, 1e-7)))
    return np.stack(rows)


def noise(samples: int) -> np.ndarray:
    return np.random.default_rng(samples).uniform(-1, 1, samples).astype(np.float32)


@pytest.mark.parametrize("samples", [1, 2, 239, 240, 480, 481, 959, 960, 961, 5000, 24_001])
def test_log_mel_agrees_with_its_definition(samples: int) -> None:
    waveform = noise(samples)
    found = audio.log_mel(torch.from_numpy(waveform), SOUND)
    expected = naive_log_mel(waveform)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape == (audio.mel_frames(samples, SOUND), 128)
    loud = np.exp(expected).max()
    assert np.abs(np.exp(found.numpy()) - np.exp(expected)).max() <= 2e-5 * loud
    # Below a ten-thousandth of the loudest, float32 has too few digits left for logarithms.
    audible = np.exp(expected) >= 1e-4 * loud
    assert audible.mean() > 0.6  # of one sample, a third of the frames hear nothing
    assert np.abs(found.numpy() - expected)[audible].max() <= 1e-4


def test_log_mel_agrees_with_torch_stft() -> None:
    waveform = torch.from_numpy(noise(30_000))
    spectrum = torch.stft(
        waveform, 960, 240, window=torch.hann_window(960), center=True, return_complex=True
    )
    bank = torch.from_numpy(filter_bank(24_000, 481, 128)).float()
    expected = (bank @ spectrum.abs()).clip(min=1e-7).log().T
    assert (audio.log_mel(waveform, SOUND) - expected).abs().max() <= 1e-4


def test_silence_is_the_quietest_everywhere() -> None:
    found = audio.log_mel(torch.zeros(2000), SOUND)
    assert found.shape == (9, 128)
    assert (found - math.log(1e-7)).abs().max() <= 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_samples_that_are_not_finite_are_refused(bad: float) -> None:
    waveform = torch.zeros(1000)
    waveform[500] = bad
    with pytest.raises(MediaError, match="NaN or infinite"):
        audio.log_mel(waveform, SOUND)


def test_empty_and_two_dimensional_sound_is_refused() -> None:
    with pytest.raises(MediaError, match="no samples"):
        audio.log_mel(torch.zeros(0), SOUND)
    with pytest.raises(MediaError, match="average its channels"):
        audio.log_mel(torch.zeros(2, 100), SOUND)
    with pytest.raises(MediaError, match="0 samples"):
        audio.mel_frames(0, SOUND)


def modules_token_count(frames: int, sound: AudioSettings) -> int:
    """Lengths of the real convolutions and of pooling and grouping with a filled-up last one."""
    x = torch.zeros(1, 1, frames)
    x = torch.nn.Conv1d(1, 1, sound.kernel_size, padding=1)(x)
    x = torch.nn.Conv1d(1, 1, sound.kernel_size, stride=sound.stride_size, padding=1)(x)
    for size in (sound.avg_pooler, sound.group_size):
        x = torch.nn.AvgPool1d(size, ceil_mode=True)(
            torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
        )
    return x.shape[-1]


@given(frames=st.integers(1, 30_000))
@hypothesis_settings(max_examples=500, deadline=None)
def test_tokens_are_those_of_the_modules(frames: int) -> None:
    assert audio.token_count(frames, SOUND) == modules_token_count(frames, SOUND)
    assert audio.token_count(frames, SOUND) == math.ceil(frames / 16)


@given(
    frames=st.integers(8, 500),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 4),
    pool=st.integers(1, 4),
    group=st.integers(1, 5),
)
@hypothesis_settings(max_examples=100, deadline=None)
def test_tokens_of_other_geometries(
    frames: int, kernel: int, stride: int, pool: int, group: int
) -> None:
    sound = replace(
        SOUND, kernel_size=kernel, stride_size=stride, avg_pooler=pool, group_size=group
    )
    assert audio.token_count(frames, sound) == modules_token_count(frames, sound)


@given(seconds=st.floats(0.0001, 3600))
@hypothesis_settings(max_examples=500, deadline=None)
def test_tokens_of_random_durations(seconds: float) -> None:
    samples = max(1, round(seconds * 24_000))
    # Every frame is centred on a multiple of 240 samples, the last on one within the sound.
    centres = len(range(0, max(samples, 481) + 1, 240))
    assert audio.mel_frames(samples, SOUND) == centres
    assert audio.token_count(centres, SOUND) == -(-centres // 16)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 48_000, 44_099])
def test_resampling_keeps_a_tone(rate: int) -> None:
    # 44,099 Hz shares no factor with 24 kHz: that is FFmpeg's part.
    waveform = torch.from_numpy(tone(0.5, rate))
    found = audio.resample(waveform, rate, 24_000).numpy()
    expected = tone(0.5, 24_000)
    assert len(found) == math.ceil(len(waveform) * 24_000 / rate)
    inner = slice(400, 11_500)
    assert np.abs(found[inner] - expected[inner]).max() <= 5e-3


def naive_sinc(waveform: np.ndarray, old: int, new: int) -> np.ndarray:
    """Hann-windowed sinc of width 6 at 0.99 of the lower Nyquist rate, sample by sample."""
    base = min(old, new) * 0.99
    width = math.ceil(6 * old / base)
    result = []
    for k in range(math.ceil(len(waveform) * new / old)):
        total = 0.0
        centre = k * old / new
        for i in range(int(centre) - width - 1, int(centre) + width + 2):
            t = (i - centre) / old * base
            if abs(t) < 6 and 0 <= i < len(waveform):
                total += waveform[i] * np.sinc(t) * math.cos(t * math.pi / 12) ** 2 * base / old
        result.append(total)
    return np.array(result)


@pytest.mark.parametrize("rate", [8000, 44_100, 48_000])
def test_resampling_agrees_with_its_definition(rate: int) -> None:
    waveform = noise(701)
    found = audio.resample(torch.from_numpy(waveform), rate, 24_000).numpy()
    assert np.abs(found - naive_sinc(waveform, rate, 24_000)).max() <= 1e-4


def test_resampling_edges() -> None:
    waveform = torch.ones(10)
    assert audio.resample(waveform, 24_000, 24_000) is waveform
    assert audio.resample(torch.ones(0), 8000, 24_000).numel() == 0
    assert audio.resample(torch.ones(1), 8000, 24_000).numel() == 3
    assert audio.resample(torch.ones(1), 44_099, 24_000).numel() == 1
    with pytest.raises(MediaError, match="0 Hz"):
        audio.resample(waveform, 0, 24_000)
    with pytest.raises(MediaError, match="common rate"):
        audio.resample(torch.ones(2, 10), 44_099, 24_000)


def test_long_sound_at_an_awkward_rate_comes_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    waveform = torch.from_numpy(tone(0.5, 44_099))
    whole = audio.resample(waveform, 44_099, 24_000)
    monkeypatch.setattr(resampling, "BLOCK", 1000)
    assert torch.equal(audio.resample(waveform, 44_099, 24_000), whole)


@pytest.mark.parametrize(
    ("container", "codec", "tolerance"),
    [
        ("wav", "pcm_u8", 1 / 128),
        ("wav", "pcm_s16le", 1 / 2**15),
        ("wav", "pcm_s32le", 1e-7),
        ("wav", "pcm_f32le", 0),
        ("wav", "pcm_f64le", 0),
        ("flac", "flac", 1 / 2**15),
    ],
)
def test_sound_files_are_decoded_and_averaged(container: str, codec: str, tolerance: float) -> None:
    channels = np.stack([tone(0.2, 16_000, 440), tone(0.2, 16_000, 1000)])
    waveform, rate = audio.decode_audio(sound_file(channels, 16_000, container, codec))
    assert rate == 16_000
    assert waveform.dtype == torch.float32
    assert waveform.shape == (3200,)
    assert np.abs(waveform.numpy() - channels.mean(0)).max() <= tolerance + 1e-7


def test_one_sample() -> None:
    waveform, rate = audio.decode_audio(sound_file(np.full((1, 1), 0.5), 8000))
    assert waveform.tolist() == [0.5]
    assert audio.log_mel(audio.resample(waveform, rate, 24_000), SOUND).shape == (3, 128)


@pytest.mark.parametrize(
    "data", [b"", b"RIFF", bytes(5000), np.random.default_rng(0).bytes(20_000)]
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match=r"cannot be read|no sound"):
        audio.decode_audio(data)


def test_playlists_are_not_followed(tmp_path) -> None:
    secret = tmp_path / "secret.wav"
    secret.write_bytes(sound_file(tone(0.1, 8000)[None], 8000))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n"
    listed = f"ffconcat version 1.0\nfile '{secret}'\n"
    for text in (playlist, listed):
        with pytest.raises(MediaError, match="cannot be read"):
            audio.decode_audio(text.encode())
