"""Makes media files with PyAV, odd ones too. Frames carry their number as eight bars."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

import vllm_mimo
from vllm_mimo.media.settings import MediaSettings

BITS = 8
Track = tuple[np.ndarray, int, float]
"""Waveform (samples,) in float32, Hz, seconds at which it begins."""


def settings() -> MediaSettings:
    path = Path(vllm_mimo.__file__).parent / "assets" / "configs" / "MiMo-V2.5.json"
    return MediaSettings.from_config(json.loads(path.read_text()))


def numbered(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """uint8 (height, width, 3): the number's bits from left to right, dark or bright."""
    bits = [(number >> bit) & 1 for bit in range(BITS)]
    columns = [40 + 160 * bits[x * BITS // width] for x in range(width)]
    return np.repeat(np.array(columns, np.uint8)[None, :, None], height, 0).repeat(3, 2)


def moving(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """uint8 (height, width, 3): the number's bars over a pattern that moves, so that a frame cannot
    be decoded without those that it refers to.
    """
    y, x = np.mgrid[:height, :width].astype(float)
    waves = [
        np.sin((x + speed * number) / 5) * np.cos((y - speed * number) / 7) for speed in (1, 2, 3)
    ]
    pattern = np.stack(waves, -1) * 35
    return (numbered(number, width, height) + pattern).clip(0, 255).astype(np.uint8)


def read_number(frame: np.ndarray) -> int:
    """The number in a frame of any size and height."""
    row = frame.astype(float).mean(axis=(0, 2))
    centres = [(2 * bit + 1) * len(row) // (2 * BITS) for bit in range(BITS)]
    return sum(int(row[x] > 120) << bit for bit, x in enumerate(centres))


def read_numbers(frames: np.ndarray) -> list[int]:
    return [read_number(frame) for frame in frames]


@dataclass
class Recipe:
    """A video to make. Frame k is shown at `times[k]` seconds, exact in 1/`ticks`."""

    times: Sequence[Fraction | float]
    container: str = "mp4"
    codec: str = "libx264"
    size: tuple[int, int] = (64, 48)
    ticks: int = 1000
    gop: int = 12
    b_frames: int = 2
    fps: int | Fraction = 10
    audio: Track | None = None
    audio_codec: str = "flac"
    rotation: int | None = None
    options: dict[str, str] | None = None
    pix_fmt: str = "yuv420p"
    codec_options: dict[str, str] | None = None
    picture: Callable[[int, int, int], np.ndarray] = numbered
    """From a frame's number, width and height."""

    def make(self, skip_sound: tuple[float, float] = (0, 0)) -> bytes:
        """The file's bytes, without the sound packets from one second to the other."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "video"  # not in memory: for its fast start, MP4 is read back
            self.write(str(path), skip_sound)
            return path.read_bytes()

    def write(self, path: str, skip_sound: tuple[float, float]) -> None:
        with av.open(path, "w", format=self.container, options=self.options or {}) as out:
            video = out.add_stream(self.codec, rate=self.fps)
            assert isinstance(video, av.VideoStream)
            video.width, video.height = self.size
            video.pix_fmt = self.pix_fmt
            video.codec_context.time_base = Fraction(1, self.ticks)
            video.codec_context.gop_size = self.gop
            video.codec_context.max_b_frames = self.b_frames
            video.codec_context.thread_count = 1
            if self.codec == "libx264":
                video.options = {"preset": "ultrafast", "bf": str(self.b_frames)}
            video.options = {**video.options, **(self.codec_options or {})}
            if self.rotation is not None:
                video.set_display_rotation(self.rotation)
            sound = None
            if self.audio is not None:
                sound = out.add_stream(self.audio_codec, rate=self.audio[1], layout="mono")
            packets = []
            for number, time in enumerate(self.times):
                picture = self.picture(number, *self.size)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts = round(time * self.ticks)
                frame.time_base = Fraction(1, self.ticks)
                packets += video.encode(frame)
            packets += video.encode(None)
            if sound is not None and self.audio is not None:
                low, high = skip_sound
                packets += [
                    packet
                    for packet in encode_sound(sound, self.audio)
                    if not low <= packet.pts * packet.time_base < high
                ]
            packets.sort(key=lambda p: (p.dts if p.dts is not None else 0) * p.time_base)
            for packet in packets:
                out.mux(packet)


def encode_sound(stream: av.AudioStream, track: Track) -> list[av.Packet]:
    waveform, rate, start = track
    kind = stream.codec_context.format.name
    packets = []
    resampler = av.AudioResampler(format=kind, layout="mono", rate=rate)
    size = stream.codec_context.frame_size or 1024
    for first in range(0, len(waveform), size):
        block = np.ascontiguousarray(waveform[None, first : first + size], dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
        frame.sample_rate = rate
        frame.time_base = Fraction(1, rate)
        frame.pts = round(start * rate) + first
        for ready in resampler.resample(frame):
            packets += stream.encode(ready)
    return packets + stream.encode(None)


def sound_file(waveform: np.ndarray, rate: int, container: str = "wav", codec: str = "pcm_s16le"):
    """Waveform (channels, samples) as the bytes of a file."""
    buffer = io.BytesIO()
    layout = {1: "mono", 2: "stereo"}[len(waveform)]
    with av.open(buffer, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        resampler = av.AudioResampler(stream.codec_context.format.name, layout, rate)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(waveform, np.float32), format="fltp", layout=layout
        )
        frame.sample_rate = rate
        for ready in [*resampler.resample(frame), None]:
            for packet in stream.encode(ready):
                out.mux(packet)
    return buffer.getvalue()


def container_stamps(data: bytes) -> list[Fraction]:
    """Presentation seconds of the video packets that are not to be discarded, ascending."""
    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0]
        return sorted(
            packet.pts * packet.time_base
            for packet in file.demux(stream)
            if packet.size and not packet.is_discard and packet.pts is not None
        )


def tone(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    """A sine at half of full scale, float32 (samples,)."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(
        np.float32
    )


def tenths(count: int, start: float = 0) -> list[Fraction]:
    """Times of frames at 10 per second."""
    return [Fraction(start).limit_denominator(1000) + Fraction(k, 10) for k in range(count)]


def box(data: bytes, kind: bytes, nth: int = 0) -> int:
    """Where the nth MP4 box of a kind starts (its size field), found by its name."""
    at = -1
    for _ in range(nth + 1):
        at = data.index(kind, at + 1)
    return at - 4
