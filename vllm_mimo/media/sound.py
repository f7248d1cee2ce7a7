"""The sound track of a file: samples, and where they stand in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
import torch
from av.container import InputContainer

from vllm_mimo.media.container import Clock, best_stream, decoded
from vllm_mimo.media.resampling import resample
from vllm_mimo.media.settings import MediaError

LONGEST = 6 * 3600
"""Seconds of sound that are read of one file; more is refused."""
MOST_SILENCE = 3600
"""Seconds of silence put in for gaps, altogether; more is refused."""
SMALLEST_GAP = Fraction(1, 10)
"""Seconds by which time stamps and counted samples may differ, as in FFmpeg (`min_hard_comp`):
some containers round their stamps to milliseconds."""
SCALES = {"u1": 128.0, "i2": 2.0**15, "i4": 2.0**31, "i8": 2.0**63}


@dataclass
class Run:
    """Samples without a gap, mono, in float32."""

    start: Fraction
    """Seconds on the file's timeline at which it begins."""
    rate: int
    parts: list[np.ndarray] = field(default_factory=list)
    count: int = 0

    @property
    def end(self) -> Fraction:
        return self.start + Fraction(self.count, self.rate)

    def add(self, samples: np.ndarray) -> None:
        self.parts.append(samples)
        self.count += len(samples)

    def samples(self) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(self.parts))


def read_runs(
    container: InputContainer, clock: Clock | None, threads: int = 1, longest: float = LONGEST
) -> list[Run]:
    """Decode the sound track; channels are averaged. Empty if there is none that can be decoded.

    Args:
        container: newly opened.
        clock: the timeline; a gap or an overlap begins a new run. Without it times are ignored.
        threads: of the decoder.
        longest: seconds of sound that are taken.

    Raises MediaError for more than `longest` seconds.
    """
    stream = best_stream(container, "audio")
    if stream is None:
        return []
    runs: list[Run] = []
    seconds = Fraction(0)
    for step in decoded(container, stream, threads):
        for frame in step.frames:
            if not isinstance(frame, av.AudioFrame) or not frame.samples or not frame.sample_rate:
                continue
            length = Fraction(frame.samples, frame.sample_rate)
            expected = runs[-1].end if runs else Fraction(0)
            time = expected
            if clock is not None and frame.pts is not None and frame.time_base is not None:
                time = clock.read(frame.pts * frame.time_base, length)
            moved = abs(time - expected) > SMALLEST_GAP or not runs
            if moved or runs[-1].rate != frame.sample_rate:
                runs.append(Run(time if moved else expected, frame.sample_rate))
            runs[-1].add(_mono(frame))
            seconds += length
            if seconds > longest:
                raise MediaError(f"the file has more than {longest} s of sound; cut it into parts")
    return runs


def on_timeline(runs: list[Run], rate: int) -> np.ndarray | None:
    """All runs in one waveform (samples,) at `rate`, whose first sample is at second 0.

    Gaps are silent; what comes before second 0, or overlaps what came before it in the file, is
    cut. None if nothing is left. Raises MediaError for more than `MOST_SILENCE` seconds of gaps.
    """
    parts: list[np.ndarray] = []
    end, silence = 0, 0
    for run in runs:
        start = round(run.start * rate)
        samples = resample(run.samples(), run.rate, rate).numpy()[max(end - start, 0) :]
        if not len(samples):
            continue
        gap = max(start - end, 0)
        silence += gap
        if silence > MOST_SILENCE * rate:
            raise MediaError(
                f"the sound is silent for more than {MOST_SILENCE} s before or within it, by its "
                "time stamps; remux the file so that sound and pictures begin near 0"
            )
        parts += [np.zeros(gap, np.float32), samples]
        end += gap + len(samples)
    return np.concatenate(parts) if parts else None


def _mono(frame: av.AudioFrame) -> np.ndarray:
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    channels = samples.astype(np.float32)
    scale = SCALES.get(samples.dtype.str[1:])
    if scale is not None:
        channels = (channels - (128.0 if samples.dtype == np.uint8 else 0.0)) / np.float32(scale)
    return channels.mean(axis=0, dtype=np.float32)
