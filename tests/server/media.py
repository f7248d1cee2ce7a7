"""Media as the parts of a chat message, and small files made for a test."""

from __future__ import annotations

import base64
import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image

Part = dict[str, Any]


def text(words: str) -> Part:
    return {"type": "text", "text": words}


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_url(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}


def image(data: bytes, kind: str = "image/jpeg") -> Part:
    return image_url(data_url(kind, data))


def video(data: bytes) -> Part:
    return {"type": "video_url", "video_url": {"url": data_url("video/mp4", data)}}


def audio(data: bytes) -> Part:
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}


def picture(width: int, height: int, kind: str = "png", seed: int | None = None) -> bytes:
    """An image file: black, or noise of a seed."""
    made = Image.new("RGB", (width, height))
    if seed is not None:
        noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        made = Image.fromarray(noise)
    file = io.BytesIO()
    made.save(file, kind)
    return file.getvalue()


def wav(samples: int, rate: int = 16_000) -> bytes:
    """A tone in 16 bit."""
    file = io.BytesIO()
    tone = np.sin(np.arange(samples) * (2 * np.pi * 440 / rate)) * 0.3
    soundfile.write(file, tone, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def mp4(frames: int, width: int = 64, height: int = 48, rate: int = 4) -> bytes:
    """A video without sound in which it gets brighter."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            pixels = np.full((height, width, 3), number * 255 // frames, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
