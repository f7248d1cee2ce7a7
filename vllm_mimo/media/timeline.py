"""When each frame of a video is shown."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from fractions import Fraction

import av
from av.container import InputContainer
from av.stream import Stream

from vllm_mimo.media.container import Clock, best_stream, decoded, open_media, packets
from vllm_mimo.media.cut_short import missing_part
from vllm_mimo.media.decoders.access import AccessPoints
from vllm_mimo.media.decoders.index import Packets, index_packets
from vllm_mimo.media.frames import Look
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
    look: Look = field(compare=False)
    """Of the first frame."""
    stamps: tuple[int, ...]
    """The container's time stamp of each frame; empty if known by decoding."""
    cut_short: str | None
    """What the file announces beyond its end, in words; the frames are those before it."""
    packets: Packets | None = field(compare=False, repr=False)
    """Where decoding may begin; None if it may only at the file's beginning."""

    def clock(self) -> Clock:
        """A clock at the file's beginning whose zero is this timeline's."""
        return Clock(self.origin, self.joined)


@dataclass(frozen=True, slots=True)
class Shown:
    """A decoded frame and its time and length in seconds (0 if unknown)."""

    frame: av.VideoFrame
    time: Fraction
    length: Fraction


def scan(
    data: bytes,
    by_decoding: bool = False,
    take: Callable[[], AbstractContextManager[int]] = lambda: nullcontext(0),
    keep_truncated: bool = False,
) -> Timeline:
    """Read a video's timeline.

    Times are the container's own, of the frames that its edit list leaves; formats whose clock
    begins anywhere begin at 0 (see `Clock`), and so do files whose clock begins below. Only the
    packets are read, and the first frame decoded, where each packet is known to be one frame;
    `by_decoding` decodes all in any case. That is done within `take`, which gives the number of
    threads (0 for as many as there are cores). With `keep_truncated`, a file that is cut short is
    decoded, and its timeline is that of the frames that are left.

    Raises MediaError for a file without video, of which nothing can be decoded, or that is damaged
    or (unless `keep_truncated`) cut short.
    """
    missing = missing_part(data)
    found: _ByPackets | str | None = None
    if missing is not None and not keep_truncated:
        raise MediaError(f"the video is cut short: {missing}; {_decodable(data)}; {HELP}")
    if missing is None and not by_decoding:
        with open_media(data) as container:
            stream = video_stream(container)
            found = _by_packets(container, stream)
            if isinstance(found, _ByPackets):
                return _timeline(container, stream, found, None)
    if isinstance(found, str):
        if not keep_truncated:
            raise MediaError(f"the video is damaged: {found}; {HELP}")
        missing = found
    with open_media(data) as container:
        stream = video_stream(container)
        clock = Clock.of(container)
        whole = _ByPackets()
        with take() as threads, suppress(*(av.FFmpegError,) if missing else ()):
            for shown in shown_frames(container, stream, clock, threads):
                whole.first = whole.first or shown.frame
                whole.spans.append((shown.time, shown.length))
        return _timeline(container, stream, whole, missing)


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


@dataclass
class _ByPackets:
    """Frames by what is known of them without decoding all."""

    first: av.VideoFrame | None = None
    spans: list[tuple[Fraction, Fraction]] = field(default_factory=list)
    """Seconds at which each is shown, and for how long."""
    stamps: tuple[int, ...] = ()
    packets: Packets | None = None


def _by_packets(container: InputContainer, stream: Stream) -> _ByPackets | str | None:
    """Frames by the packets alone but for the first, or None where packets may not be frames. Or
    what the file's index announces and does not hold, in words.
    """
    announced = len(stream.index_entries) if container.format.name == MP4 else 0
    if container.format.name not in STAMPED_FORMATS or not stream.time_base:
        return None
    access = AccessPoints.of(stream.codec_context.name, stream.codec_context.extradata)
    shown: list[int] = []
    stored: list[int | None] = []
    begins: list[int] = []
    alike = True
    spans: dict[int, int] = {}
    first: av.VideoFrame | None = None
    count = 0
    exact = stream.codec_context.name in STAMPED_CODECS
    stream.codec_context.thread_count = 1
    for packet in packets(container, stream):
        if first is None and (packet.size or packet.dts is None):
            first = _frame_of(packet)
        if not packet.size:
            continue
        count += 1
        if packet.pts is None or packet.is_corrupt or packet.pts in spans:
            exact = False
            continue
        if packet.is_keyframe and access.begins(memoryview(packet)):
            begins.append(len(shown))
        shown.append(packet.pts)
        stored.append(packet.dts)
        alike = alike and not packet.has_sidedata("new_extradata")
        if packet.pts < shown[0] or (count == 1 and not packet.is_keyframe):
            exact = False  # it refers to pictures before the first
        if not packet.is_discard:
            spans[packet.pts] = packet.duration or 0
    if count < (1 - MOST_DAMAGE) * announced:
        return f"its index lists {announced} frames and {count} can be read"
    if not exact:
        return None
    base = stream.time_base
    index = index_packets(
        shown,
        stored,
        begins,
        base,
        leading=access.leading,
        seek_by_pts=container.format.name != MP4,
    )
    stamps = sorted(spans)
    return _ByPackets(
        first,
        [(pts * base, spans[pts] * base) for pts in stamps],
        tuple(stamps),
        index if alike else None,
    )


def _frame_of(packet: av.Packet) -> av.VideoFrame | None:
    """The first frame that a packet makes the decoder give."""
    with suppress(av.FFmpegError):
        for frame in packet.decode():
            if isinstance(frame, av.VideoFrame):
                return frame
    return None


def _timeline(
    container: InputContainer, stream: Stream, found: _ByPackets, missing: str | None
) -> Timeline:
    """Raises MediaError if there are no frames."""
    frame, spans = found.first, found.spans
    if frame is None or not spans:
        raise MediaError(f"no frame of the video could be decoded; {HELP}")
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
        look=Look.of(frame),
        stamps=found.stamps,
        cut_short=missing,
        packets=found.packets,
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
