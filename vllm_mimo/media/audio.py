"""From sound to the log-mel spectrogram that the audio tokenizer reads, and the tokens it gives.

Source: `preprocess_audio` of SGLang's MiMo-V2 processor. Where that one fails on sound shorter than
half an FFT window, zeros are appended here.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch
import torchaudio

from vllm_mimo.media.container import open_media
from vllm_mimo.media.resampling import resample
from vllm_mimo.media.settings import AudioSettings, MediaError
from vllm_mimo.media.sound import LONGEST, read_runs

__all__ = ["decode_audio", "log_mel", "mel_frames", "resample", "shortest", "token_count"]

QUIETEST = 1e-7
"""Magnitudes are raised to this before the logarithm."""


def decode_audio(data: bytes, longest: float | None = None) -> tuple[torch.Tensor, int]:
    """The sound of an audio or video file: waveform (samples,) in float32, and its rate in Hz.

    Channels are averaged. Samples stand one after another whatever their times; a file whose rate
    changes is brought to its first rate.

    Raises MediaError if there is no sound that can be decoded, or more than `longest`
    seconds (`sound.LONGEST`).
    """
    with open_media(data) as container:
        runs = read_runs(container, clock=None, longest=longest or LONGEST)
    if not runs:
        raise MediaError(
            "the file has no sound that can be decoded; send WAV, MP3, FLAC, Ogg, AAC or a video "
            "with a sound track"
        )
    rate = runs[0].rate
    parts = [resample(run.samples(), run.rate, rate) for run in runs]
    return torch.cat(parts), rate


def log_mel(waveform: torch.Tensor, settings: AudioSettings) -> torch.Tensor:
    """Log-mel spectrogram (mel frames, n_mels) of waveform (samples,), on its device in float32.

    The waveform is at `settings.sampling_rate`, with full scale at 1. Both ends are mirrored for
    half an FFT window, which takes more samples than that: a shorter waveform is followed by zeros
    up to `shortest(settings)`.

    Raises MediaError for a waveform that is empty, not one-dimensional or not finite.
    """
    if waveform.ndim != 1:
        raise MediaError(
            f"the waveform has shape {tuple(waveform.shape)}; average its channels first"
        )
    if waveform.numel() == 0:
        raise MediaError("the sound has no samples; send at least one")
    waveform = waveform.float()
    if not bool(torch.isfinite(waveform).all()):
        raise MediaError("the sound has samples that are NaN or infinite; send finite ones")
    missing = shortest(settings) - waveform.numel()
    if missing > 0:
        waveform = torch.nn.functional.pad(waveform, (0, missing))
    spectrogram = _spectrogram(settings, waveform.device)(waveform)
    return spectrogram.clip(min=QUIETEST).log().transpose(0, 1).contiguous()


def shortest(settings: AudioSettings) -> int:
    """Samples below which a waveform cannot be mirrored at its ends."""
    return settings.n_fft // 2 + 1


def mel_frames(samples: int, settings: AudioSettings) -> int:
    """Frames of `log_mel` for so many samples. Raises MediaError for none."""
    if samples < 1:
        raise MediaError(f"the sound has {samples} samples; send at least one")
    padded = max(samples, shortest(settings)) + settings.n_fft // 2 * 2
    return 1 + (padded - settings.n_fft) // settings.hop_length


def token_count(mel_frames: int, settings: AudioSettings) -> int:
    """Tokens that stand for so many mel frames in the prompt.

    Two convolutions padded by one (the second with a stride), a mean over `avg_pooler` frames and
    groups of `group_size` codes, the last two with an incomplete last one.
    """
    frames = mel_frames + 3 - settings.kernel_size
    frames = (frames + 2 - settings.kernel_size) // settings.stride_size + 1
    codes = -(-frames // settings.avg_pooler)
    return -(-codes // settings.group_size)


@lru_cache(maxsize=4)
def _spectrogram(settings: AudioSettings, device: torch.device) -> torch.nn.Module:
    with warnings.catch_warnings():
        # The lowest filters of MiMo's bank are narrower than an FFT bin; the model knows them so.
        warnings.filterwarnings("ignore", message="At least one mel filterbank")
        return torchaudio.transforms.MelSpectrogram(
            sample_rate=settings.sampling_rate,
            n_fft=settings.n_fft,
            win_length=settings.window_size,
            hop_length=settings.hop_length,
            f_min=settings.f_min,
            f_max=settings.f_max,
            n_mels=settings.n_mels,
            power=1.0,
            center=True,
        ).to(device)
