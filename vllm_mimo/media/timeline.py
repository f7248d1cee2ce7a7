"""When each frame of a video is shown."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import av
from av.container import InputContainer
from av.stream import Stream

from vllm_mimo.media.container import Clock, best_stream, decoded, open_media, packets
from vllm_mimo.media.cut_short import missing_part
from vllm_mimo.media.settings import MediaError

MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
STAMPED_FORMATS = (MP4, "matroska,webm")
"""Containers that stamp every packet with the time at which its picture is shown."""
STAMPED_CODECS = ("h264", "hevc", "vp9", "av1", "libdav1d", "mpeg4", "mjpeg", "prores", "ffv1")
"""Codecs of which a packet is one shown picture. Not VP8, whose hidden pictures are packets."""
MOST_DAMAGE = 0.1
"""Share of packets that the decoder may refuse."""
HELP = "send a whole file with a video track, such as an MP4 with H.264"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The frames of a video that are shown, and what else a look at the file tells."""

    times: tuple[float, ...]
    """Seconds at which each frame is shown, ascending."""
    average_fps: float
    """The container's, if it agrees with the frames to within one; else theirs."""
    duration: float
    """Seconds from the first frame's beginning to the last one's end."""
    width: int
    height: int
    """Of the first frame as it is shown: turned."""
    rotation: int
    """Degrees counter-clockwise by which the stored frames are turned to be shown."""
    has_audio: bool
    origin: Fraction
    """Seconds on the container's clock at time 0."""
    joined: bool
    """Whether that clock may jump."""

    def clock(self) -> Clock:
        """A clock at the file's beginning whose zero is this timeline's."""
        return Clock(self.origin, self.joined)


@dataclass(frozen=True, slots=True)
class Shown:
    """A decoded frame and its time and length in seconds (0 if unknown)."""

    frame: av.VideoFrame
    time: Fraction
    length: Fraction


def scan(data: bytes, by_decoding: bool = False, threads: int = 0) -> Timeline:
    """Read a video's timeline.

    Times are the container's own, of the frames that its edit list leaves; formats whose clock
    begins anywhere begin at 0 (see `Clock`), and so do files whose clock begins below. Only the
    packets are read where each is known to be one frame; `by_decoding` decodes in any case, with
    so many `threads` (0 for as many as there are cores).

    Raises MediaError for a file without video, of which nothing can be decoded, or that is cut
    short or damaged.
    """
    missing = missing_part(data)
    if missing is not None:
        raise MediaError(f"the video is cut short: {missing}; {_decodable(data)}; {HELP}")
    with open_media(data) as container:
        stream = video_stream(container)
        spans = None if by_decoding else _packet_spans(container, stream)
    with open_media(data) as container:
        stream = video_stream(container)
        clock = Clock.of(container)
        first: Shown | None = None
        if spans is None:
            spans = []
            for shown in shown_frames(container, stream, clock, threads):
                first = first or shown
                spans.append((shown.time, shown.length))
        else:
            first = next(shown_frames(container, stream, clock, 1), None)
        if first is None or not spans:
            raise MediaError(f"no frame of the video could be decoded; {HELP}")
        return _timeline(container, stream, first.frame, spans)


def video_stream(container: InputContainer) -> Stream:
    """The video track. Raises MediaError if there is none that can be decoded."""
    stream = best_stream(container, "video")
    if stream is None:
        raise MediaError(f"the file has no video track that can be decoded; {HELP}")
    return stream


def shown_frames(
    container: InputContainer, stream: Stream, clock: Clock, threads: int = 0
) -> Iterator[Shown]:
    """Decode a newly opened file's video and time its frames. Times never go back.

    AVI has no presentation times: the k-th frame shown has the time of the k-th packet. A frame
    without a time follows the one before it. Raises MediaError if too much of it is damaged.
    """
    by_order = container.format.name == "avi"
    waiting: list[int] = []
    latest, following = None, Fraction(0)
    given = damaged = count = 0
    for step in decoded(container, stream, threads):
        given += bool(step.packet.size)
        if by_order and step.packet.dts is not None:
            heapq.heappush(waiting, step.packet.dts)
        # Before the first frame are what refers to pictures that a cut has taken away.
        damaged += step.damaged and latest is not None
        for frame in step.frames:
            if not isinstance(frame, av.VideoFrame):
                continue
            base = frame.time_base or stream.time_base or Fraction(1)
            length = Fraction(frame.duration or 0) * base or _usual_length(stream)
            stamp = heapq.heappop(waiting) if waiting else None if by_order else frame.pts
            time = following if stamp is None else clock.read(stamp * base, length)
            latest = time if latest is None else max(time, latest)
            following = latest + length
            count += 1
            yield Shown(frame, latest, length)
    if damaged > MOST_DAMAGE * given:
        raise MediaError(
            f"the video is damaged: {damaged} of {given} packets could not be decoded, "
            f"{count} frames could; {HELP}"
        )


def _packet_spans(
    container: InputContainer, stream: Stream
) -> list[tuple[Fraction, Fraction]] | None:
    """Times and lengths by the packets alone, or None where they may not be those of frames."""
    announced = len(stream.index_entries) if container.format.name == MP4 else 0
    if container.format.name not in STAMPED_FORMATS or not stream.time_base:
        return None
    spans: dict[int, int] = {}
    first = None
    count = 0
    exact = stream.codec_context.name in STAMPED_CODECS
    for packet in packets(container, stream):
        if not packet.size:
            continue
        count += 1
        if packet.pts is None or packet.is_corrupt or packet.pts in spans:
            exact = False
            continue
        first = packet.pts if first is None else first
        if packet.pts < first or (count == 1 and not packet.is_keyframe):
            exact = False  # it refers to pictures before the first
        if not packet.is_discard:
            spans[packet.pts] = packet.duration or 0
    if count < (1 - MOST_DAMAGE) * announced:
        raise MediaError(
            f"the video is damaged: its index lists {announced} frames and {count} can be read; "
            f"{HELP}"
        )
    if not exact:
        return None
    base = stream.time_base
    return [(pts * base, spans[pts] * base) for pts in sorted(spans)]


def _timeline(
    container: InputContainer,
    stream: Stream,
    frame: av.VideoFrame,
    spans: list[tuple[Fraction, Fraction]],
) -> Timeline:
    clock = Clock.of(container)
    begin, last = spans[0][0], spans[-1]
    earlier = min(begin, Fraction(0))
    mean = (last[0] - begin) / (len(spans) - 1) if len(spans) > 1 else Fraction(0)
    length = last[1] or mean or _usual_length(stream) or Fraction(1)
    duration = last[0] + length - begin
    rate = len(spans) / duration
    stated = stream.average_rate
    if stated and abs(stated * duration - len(spans)) <= 1:
        rate = stated
    transposed = abs(frame.rotation) % 180 == 90
    return Timeline(
        times=tuple(float(time - earlier) for time, _ in spans),
        average_fps=float(rate),
        duration=float(duration),
        width=frame.height if transposed else frame.width,
        height=frame.width if transposed else frame.height,
        rotation=frame.rotation,
        has_audio=best_stream(container, "audio") is not None,
        origin=clock.origin + earlier,
        joined=clock.joined,
    )


def _usual_length(stream: Stream) -> Fraction:
    rate = stream.average_rate
    return 1 / rate if rate else Fraction(0)


def _decodable(data: bytes) -> str:
    """How many frames can be decoded, in words."""
    count = 0
    try:
        with open_media(data) as container:
            stream = video_stream(container)
            for step in decoded(container, stream):
                count += len(step.frames)
    except MediaError:
        pass  # what came before counts
    return f"{count} frames of it could be decoded"
