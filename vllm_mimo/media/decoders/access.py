"""Whether a decoder may begin at a packet, by what the packet holds.

A container's word for it is not enough. Its keyframes may be pictures from which an intra refresh
only begins, or lack the parameter sets that came before them in the stream. Sources: ITU-T H.264
7.3.1 and 7.4.1, H.265 7.3.1.2 and 7.4.2.2, ISO/IEC 14496-15 (avcC, hvcC), and the VP9 bitstream
specification, 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class AccessPoints:
    """Looks at one stream's keyframes, in the order in which they are stored."""

    codec: str
    """FFmpeg's name of the codec."""
    length_size: int
    """Bytes of a NAL unit's size field; 0 for other codecs and other layouts."""
    sets_seen: bool = False
    """Whether parameter sets have come in the stream, and may differ from the header's."""

    @classmethod
    def of(cls, codec: str, extradata: bytes | None) -> AccessPoints:
        """For a stream with this decoder configuration record."""
        at = {"h264": 4, "hevc": 21}.get(codec)
        size = 0
        if at is not None and extradata and len(extradata) > at and extradata[0] == 1:
            size = (extradata[at] & 3) + 1
        return cls(codec, size)

    def begins(self, packet: memoryview) -> bool:
        """Whether decoding may begin with this keyframe, as far as it shows."""
        if self.codec in ("h264", "hevc"):
            return self._first_picture_stands_alone(packet)
        if self.codec == "vp9":
            return _vp9_key(packet)
        return True

    @property
    def leading(self) -> bool:
        """Whether pictures may follow one that decoding may begin with, be shown before it and need
        what came before it (RASL pictures of H.265, B-VOPs of MPEG-4), and can be left out because
        no others need them.
        """
        return self.codec in ("hevc", "mpeg4")

    def _first_picture_stands_alone(self, packet: memoryview) -> bool:
        """Whether its first slice is of an IDR picture (H.264) or of any IRAP picture (H.265)."""
        if not self.length_size:
            return False
        at, sets = 0, False
        while at + self.length_size < len(packet):
            size = int.from_bytes(packet[at : at + self.length_size], "big")
            head = packet[at + self.length_size]
            at += self.length_size + size
            kind = head & 0x1F if self.codec == "h264" else (head >> 1) & 0x3F
            if kind in ((7, 8) if self.codec == "h264" else (32, 33, 34)):
                sets = self.sets_seen = True
            elif self.codec == "h264" and 1 <= kind <= 5:
                return kind == 5 and (sets or not self.sets_seen)
            elif self.codec == "hevc" and kind < 32:
                return 16 <= kind <= 21 and (sets or not self.sets_seen)
        return False


def _vp9_key(packet: memoryview) -> bool:
    """Whether a frame (or a superframe's first) is a key frame."""
    if not len(packet):
        return False
    bits = packet[0]
    marker, profile = bits >> 6, (bits >> 5 & 1) | (bits >> 3 & 2)
    shift = 1 if profile == 3 else 0  # a reserved bit
    return marker == 2 and not bits >> (3 - shift) & 1 and not bits >> (2 - shift) & 1
