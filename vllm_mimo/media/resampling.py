"""Changing the rate of sound as the reference does: torchaudio's windowed sinc."""

from __future__ import annotations

import math
from functools import lru_cache

import av
import numpy as np
import torch
import torchaudio

from vllm_mimo.media.settings import MediaError

MAX_KERNEL = 1 << 22
"""Coefficients of the largest kernel made (16 MiB). Rates such as 44,099 and 24,000 Hz, which share
no factor, would need 10**9."""
BLOCK = 1 << 20
"""Samples handed to FFmpeg's resampler at once."""


def resample(waveform: torch.Tensor, from_rate: int, to_rate: int) -> torch.Tensor:
    """Change the rate of waveform (..., samples), float32, in Hz.

    The result has ceil(samples * to_rate / from_rate) samples. Rates with too small a common
    divisor go through FFmpeg's resampler, which takes one dimension, by way of the CPU.

    Raises MediaError for a rate that is not positive.
    """
    if from_rate <= 0 or to_rate <= 0:
        raise MediaError(f"cannot change a rate of {from_rate} Hz to {to_rate} Hz; give rates > 0")
    if from_rate == to_rate or waveform.shape[-1] == 0:
        return waveform
    divisor = math.gcd(from_rate, to_rate)
    if (from_rate // divisor) * (to_rate // divisor) <= MAX_KERNEL:
        return _sinc(from_rate, to_rate, waveform.device)(waveform)
    if waveform.ndim != 1:
        raise MediaError(
            f"a waveform of shape {tuple(waveform.shape)} at {from_rate} Hz: average its channels, "
            "or send it at a common rate such as 48000 Hz"
        )
    samples = waveform.detach().float().cpu().numpy()
    return torch.from_numpy(_by_ffmpeg(samples, from_rate, to_rate)).to(waveform.device)


@lru_cache(maxsize=16)
def _sinc(from_rate: int, to_rate: int, device: torch.device) -> torch.nn.Module:
    return torchaudio.transforms.Resample(from_rate, to_rate).to(device)


def _by_ffmpeg(samples: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    resampler = av.AudioResampler(format="flt", layout="mono", rate=to_rate)
    parts = []
    for start in range(0, len(samples), BLOCK):
        block = samples[None, start : start + BLOCK]
        frame = av.AudioFrame.from_ndarray(block, format="flt", layout="mono")
        frame.sample_rate = from_rate
        parts += [out.to_ndarray()[0] for out in resampler.resample(frame)]
    parts += [out.to_ndarray()[0] for out in resampler.resample(None)]
    wanted = -(-len(samples) * to_rate // from_rate)
    joined = np.concatenate([np.zeros(0, np.float32), *parts])[:wanted]
    return np.pad(joined, (0, wanted - len(joined)))
