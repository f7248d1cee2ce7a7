"""From a decoded frame to an upright picture in RGB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideData, Type


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """How all frames of a video are brought to a picture: as the first one is."""

    width: int
    height: int
    """As stored; frames of another size are scaled to it."""
    matrix: np.ndarray | None
    """FFmpeg's display matrix, int64 (3, 3): columns 0 and 1 take (x, y) of a stored pixel to the
    shown one's. None to leave frames as they are stored."""

    @classmethod
    def of(cls, frame: av.VideoFrame) -> Look:
        """That of a video's first frame."""
        matrix = None
        for side_data in cast(Iterable[SideData], frame.side_data):
            if side_data.type is Type.DISPLAYMATRIX:
                values = np.frombuffer(bytes(side_data), np.int32)
                matrix = values.reshape(3, 3).astype(np.int64)
                break
        return cls(frame.width, frame.height, matrix)

    @property
    def plain(self) -> bool:
        """Whether pictures are as they are stored."""
        return self.matrix is None or (np.sign(self.matrix[:2, :2]) == np.eye(2)).all()

    def picture(self, frame: av.VideoFrame) -> np.ndarray:
        """uint8 (height, width, 3), by FFmpeg's swscale; it may be a view of memory of its own."""
        scaled = frame.reformat(width=self.width, height=self.height, format="rgb24", threads=1)
        plane = scaled.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: self.height]
        return self._turn(rows[:, : 3 * self.width].reshape(self.height, self.width, 3))

    def _turn(self, picture: np.ndarray) -> np.ndarray:
        """Turn by quarters and mirror, as the matrix says (to the nearest quarter)."""
        if self.matrix is None:
            return picture
        (a, b), (c, d) = self.matrix[0, :2], self.matrix[1, :2]
        if abs(b) > abs(a):
            picture, across, down = picture.transpose(1, 0, 2), c, b
        else:
            across, down = a, d
        return picture[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1]
