"""Whether a media file ends before its own headers say it does, without FFmpeg.

FFmpeg plays what there is of such a file and reports nothing. Sources: ISO/IEC 14496-12 (boxes of
MP4 and MOV), RFC 8794 (elements of Matroska and WebM), Microsoft's RIFF (chunks of AVI).
"""

from __future__ import annotations

from collections.abc import Iterator

MEDIA_BOXES = (b"mdat", b"moov", b"moof")
"""Boxes whose loss is a loss of pictures or sound."""
FIRST_BOXES = (b"ftyp", b"styp", b"sidx", b"free", b"skip", b"wide", b"pnot", b"uuid", *MEDIA_BOXES)
EBML, SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def missing_part(data: bytes) -> str | None:
    """What a file announces beyond its end, in words; None for a whole file or another format."""
    if data[4:8] in FIRST_BOXES:
        parts = _boxes(data)
    elif data[:4] == EBML:
        parts = _segment(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        parts = _riffs(data)
    else:
        return None
    for name, end in parts:
        if end > len(data):
            return f"{name} should end at byte {end}, but the file has {len(data)}"
    return None


def _boxes(data: bytes) -> Iterator[tuple[str, int]]:
    start = 0
    while start + 8 <= len(data):
        size, kind = int.from_bytes(data[start : start + 4], "big"), data[start + 4 : start + 8]
        if size == 1:
            size = int.from_bytes(data[start + 8 : start + 16], "big")
        if size < 8:  # 0: to the end of the file; else not a box
            return
        start += size
        if kind in MEDIA_BOXES:
            yield f"the MP4 box '{kind.decode()}'", start


def _segment(data: bytes) -> Iterator[tuple[str, int]]:
    size, start = _element_size(data, 4)
    if size is None:
        return
    start += size
    if data[start : start + 4] == SEGMENT:
        size, start = _element_size(data, start + 4)
        if size is not None:  # None: a live recording, of any length
            yield "the Matroska segment", start + size


def _element_size(data: bytes, at: int) -> tuple[int | None, int]:
    """Size of an element's content (None if unknown) and where the content starts."""
    first = data[at] if at < len(data) else 0
    length = 9 - first.bit_length()
    if length > 8:
        return None, at
    value = int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def _riffs(data: bytes) -> Iterator[tuple[str, int]]:
    start = 0
    while data[start : start + 4] == b"RIFF":
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        if size in (0, 0xFFFFFFFF):  # never filled in
            return
        yield "the AVI's RIFF chunk", start + 8 + size
        start += 8 + size + size % 2
