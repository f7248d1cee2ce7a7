"""The audio tower as served equals the plain-torch reference, whatever it is batched with."""

from __future__ import annotations

import pytest
import torch

from vllm_mimo.media.audio import log_mel, token_count
from vllm_mimo.media.settings import MediaSettings

SAMPLES = (1, 240, 479, 12_345, 24_000, 24_000 * 7 + 13)


def sound(samples: int, seed: int = 0) -> torch.Tensor:
    """Two drifting tones and noise."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / 24_000
    tones = torch.sin(2 * torch.pi * (300 + 80 * seed + 50 * time) * time)
    return 0.3 * tones + 0.02 * torch.randn(samples, generator=generator)


@pytest.mark.parametrize("samples", SAMPLES)
def test_recordings(samples, ears, audio_reference, config):
    settings = MediaSettings.from_config(config).audio
    mel = log_mel(sound(samples), settings)
    assert torch.equal(ears.codes(mel), audio_reference.codes(mel))
    ours, exact = ears.embed(mel), audio_reference(mel)
    assert ours.shape == exact.shape == (token_count(len(mel), settings), 128)
    assert (ours - exact).abs().max() <= 1e-4


def test_silence(ears, audio_reference, config):
    mel = log_mel(torch.zeros(24_000), MediaSettings.from_config(config).audio)
    assert (ears.embed(mel) - audio_reference(mel)).abs().max() <= 1e-4


@pytest.mark.parametrize("frames", [6000, 6001, 6101, 12_003])
def test_long_recordings_in_segments(frames, ears, audio_reference, config):
    """A minute is one segment; the rest of odd length is where padding shows."""
    mel = torch.randn(frames, 128, generator=torch.Generator().manual_seed(frames))
    assert torch.equal(ears.codes(mel), audio_reference.codes(mel))
    assert len(ears.embed(mel)) == token_count(frames, MediaSettings.from_config(config).audio)


def test_a_recording_does_not_depend_on_its_batch(ears, config):
    settings = MediaSettings.from_config(config).audio
    mels = [log_mel(sound(n, seed), settings) for seed, n in enumerate((24_000, 9_999, 31_337))]
    together, counts = ears.get_audio_feature(mels)
    for mel, part in zip(mels, together.split(counts), strict=True):
        assert (ears.embed(mel) - part).abs().max() <= 1e-6


def test_different_sounds_sound_different(ears, config):
    settings = MediaSettings.from_config(config).audio
    first, second = (ears.embed(log_mel(sound(24_000, seed), settings)) for seed in (1, 2))
    assert (first - second).norm() > 0.1 * first.norm()


def test_the_local_transformer_sees_both_ways(ears):
    """Its four codes are one token: a change of the last one reaches the first one's output."""
    before = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    after[:, 3] += 1
    change = ears.apply_input_local_transformer(after) - ears.apply_input_local_transformer(before)
    assert change[:, 0].abs().max() > 1e-3
