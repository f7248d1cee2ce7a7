"""Opening a media file with FFmpeg, and the clock that its times are read by."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import av
from av.container import InputContainer
from av.format import Flags
from av.stream import Disposition, Stream

from vllm_mimo.media.settings import MediaError

DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg,ivf,nut,gif,apng,mxf,rm,dv,"
    "h264,hevc,m4v,mpegvideo,mjpeg,obu,vc1,wav,w64,mp3,flac,aac,aiff,au,caf,amr,ac3,eac3,wv,ape,tta"
)
"""Formats that are read. Playlists and lists of files (HLS, DASH, concat) are not among them: they
would have FFmpeg open what they name, files and addresses of the server's network."""
LONGEST_STEP = 10
"""Seconds by which one frame may follow another in a format whose clock may jump; FFmpeg's own
limit (`-dts_delta_threshold`)."""


@contextmanager
def open_media(data: bytes) -> Iterator[InputContainer]:
    """Open a file's content. Raises MediaError if FFmpeg knows no format for it, or is lost in it.

    Errors of FFmpeg that leave the block become a MediaError too.
    """
    try:
        with av.open(
            io.BytesIO(data),
            "r",
            options={"format_whitelist": DEMUXERS},
            metadata_errors="replace",
        ) as container:
            yield container
    except av.FFmpegError as error:
        raise MediaError(
            f"the file of {len(data)} bytes cannot be read ({error.strerror}): it is damaged, cut "
            "short or of an unknown format; send a whole file, such as MP4, WebM, MKV, WAV or MP3"
        ) from error


def best_stream(container: InputContainer, kind: str) -> Stream | None:
    """The stream of a kind ("video", "audio") that FFmpeg prefers and can decode; no cover art."""
    streams = [
        stream
        for stream in container.streams
        if stream.type == kind
        and getattr(stream, "codec_context", None) is not None
        and not stream.disposition & Disposition.attached_pic
    ]
    best = container.streams.best(kind)  # type: ignore[arg-type]
    return best if best in streams else next(iter(streams), None)


@dataclass(frozen=True, slots=True)
class Step:
    """What one packet gave."""

    packet: av.Packet
    frames: list[av.VideoFrame | av.AudioFrame]
    damaged: bool
    """The decoder refused it."""


def packets(container: InputContainer, stream: Stream) -> Iterator[av.Packet]:
    """One stream's packets to the end, then one without data that empties a decoder."""
    try:
        yield from container.demux(stream)
    except IndexError:
        # A damaged transport stream may gain tracks while it is read. PyAV 18 has none to give for
        # those at the end, after the last packets of all others.
        return


def decoded(container: InputContainer, stream: Stream, threads: int = 0) -> Iterator[Step]:
    """Decode one stream of a newly opened file, packet by packet, to its end.

    Packets that the decoder refuses give no frames; those that an edit list leaves out neither.
    `threads` is the decoder's number of threads, 0 for as many as there are cores. Errors of the
    container raise FFmpegError, which `open_media` turns into MediaError.
    """
    stream.codec_context.thread_type = "AUTO"
    stream.codec_context.thread_count = threads
    for packet in packets(container, stream):
        if not packet.size and packet.dts is not None:
            continue  # AVI's way to repeat a picture; to FFmpeg's decoders it would be the end
        try:
            frames: list[av.VideoFrame | av.AudioFrame] = [
                f for f in packet.decode() if isinstance(f, av.VideoFrame | av.AudioFrame)
            ]
            yield Step(packet, frames, damaged=False)
        except av.FFmpegError:
            yield Step(packet, [], damaged=True)


@dataclass
class Clock:
    """Seconds on the file's timeline for one stream's time stamps, in the order they come.

    Seconds are the stamps as the container gives them, but two kinds of stamps have no zero of
    their own. Formats that FFmpeg flags so (MPEG-TS, MPEG-PS) begin at any time, and their clock
    may jump where recordings were joined: the file's first stamp is zero there, and a step back, or
    ahead by more than ten seconds, is taken as one of the usual length.
    """

    origin: Fraction
    joined: bool
    """Whether the clock may jump."""
    shift: Fraction = Fraction(0)
    previous: Fraction | None = None
    usual: Fraction = Fraction(0)

    @classmethod
    def of(cls, container: InputContainer) -> Clock:
        """A clock at the beginning of a file."""
        joined = bool(Flags(container.format.flags) & Flags.ts_discont)
        start = container.start_time if joined else None
        return cls(Fraction(start or 0, av.time_base), joined)

    def read(self, stamp: Fraction, length: Fraction) -> Fraction:
        """Seconds on the timeline of a frame stamped so (in seconds) that lasts so long."""
        time = stamp - self.origin + self.shift
        if self.joined and self.previous is not None:
            step = time - self.previous
            if step < 0 or step > LONGEST_STEP:
                expected = self.previous + self.usual
                self.shift += expected - time
                time = expected
        self.previous, self.usual = time, length
        return time
