"""What a decoder is given, and how it says that it cannot be relied on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from vllm_mimo.media.decoders.index import Packets
from vllm_mimo.media.decoders.plan import Part, Wanted
from vllm_mimo.media.frames import Look

Decoder = Callable[["Job"], int]
"""Decodes a job's wanted frames and hands each to `put`. Returns how many frames it decoded, wanted
or not; 0 if it cannot tell. Raises Doubt."""


class Doubt(Exception):
    """Frames may not be those of the timeline; the message says why. They are decoded again by
    the surest way."""


@dataclass(frozen=True, slots=True)
class Job:
    """One part of a video's frames."""

    data: bytes
    """The file's content."""
    packets: Packets
    part: Part
    total: int
    """Frames of the whole video."""
    look: Look
    put: Callable[[int, np.ndarray], None]
    """Takes a frame's place among those asked for and its picture, uint8 (height, width, 3), RGB,
    upright, which it copies."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the result will not be used."""

    def seconds(self, frame: Wanted) -> float:
        """When a frame is shown, on the container's clock."""
        return float(self.packets.pts[frame.packet] * self.packets.base)

    @property
    def tolerance(self) -> float:
        """Seconds by which another library's time may differ: less than frames do."""
        return float(self.packets.base) * 0.6
