"""FFmpeg through PyAV, which decodes no more than it must.

Of H.264 and H.265, pictures that no other refers to are skipped packet by packet unless they are
wanted; a decoder of AV1 has no such pictures to tell it by, and loses others.
"""

from __future__ import annotations

from collections.abc import Iterator

import av
from av.container import InputContainer
from av.stream import Stream

from vllm_mimo.media.container import open_media, packets
from vllm_mimo.media.decoders.index import Packets
from vllm_mimo.media.decoders.job import Doubt, Job
from vllm_mimo.media.settings import MediaError
from vllm_mimo.media.timeline import video_stream

SKIPS = ("h264", "hevc")
"""Codecs whose non-reference pictures are skipped."""
NEAR = 64
"""Packets that are read through rather than jumped over."""


def decode(job: Job) -> int:
    """Decode a part with one thread; see `job.Decoder`."""
    try:
        with open_media(job.data) as container:
            return _Part(job, container).decode()
    except (av.FFmpegError, MediaError) as error:
        raise Doubt(str(error)) from error


class _Part:
    def __init__(self, job: Job, container: InputContainer) -> None:
        self.job = job
        self.stream = video_stream(container)
        self.reader = _Reader(container, self.stream, job.packets)
        self.places = {job.packets.pts[w.packet]: w.place for w in job.part.wanted}
        self.context = self.stream.codec_context
        self.context.thread_count = 1
        # What cannot be decoded right is to be said, not made up: then the whole is looked at.
        self.context.options = {"err_detect": "explode"}
        self.skips = self.context.name in SKIPS
        self.decoded = 0

    def decode(self) -> int:
        wanted = set(self.places)
        for first, last in self.job.part.runs:
            beginning = self.job.packets.pts[first]
            for packet in self.reader.read(first, last):
                if self.job.stop.is_set():
                    return self.decoded
                if packet.pts is not None and packet.pts < beginning:
                    continue  # it may need pictures from before this stretch
                if self.skips:
                    # A property of the decoder, for the packets that it is given from now on.
                    self.context.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
                self._take(packet)
            self._take(None)
            self.context.flush_buffers()
        if self.places:
            raise Doubt(f"{len(self.places)} frames did not come")
        return self.decoded

    def _take(self, packet: av.Packet | None) -> None:
        for frame in self.context.decode(packet):  # type: ignore[attr-defined]
            self.decoded += 1
            if frame.is_corrupt:
                raise Doubt("a frame is damaged")
            place = self.places.pop(frame.pts, None)
            if place is not None:
                self.job.put(place, self.job.look.picture(frame))


class _Reader:
    """One track's packets by their numbers."""

    def __init__(self, container: InputContainer, stream: Stream, index: Packets) -> None:
        self.container, self.stream, self.index = container, stream, index
        self.stamps = dict(zip(index.begins, index.seek, strict=True))
        self.source: Iterator[av.Packet] = packets(container, stream)
        self.next = 0
        """Number of the packet that comes next."""

    def read(self, first: int, last: int) -> Iterator[av.Packet]:
        """Packets from one number to another. Raises Doubt if they are not those of the index."""
        packet = self._jump(first) if not 0 <= first - self.next <= NEAR else self._step()
        while self._number(packet) < first:
            packet = self._step()
        for number in range(first, last + 1):
            if self._number(packet) != number:
                raise Doubt("packets come in another order than before")
            yield packet
            if number < last:
                packet = self._step()

    def _jump(self, first: int) -> av.Packet:
        """The packet itself or one before it."""
        for stamp in (self.stamps[first], self.index.seek[0]):
            self.container.seek(stamp, stream=self.stream, backward=True)
            self.source = packets(self.container, self.stream)
            packet = self._step()
            if self._number(packet) <= first:
                return packet
        raise Doubt("the file has no way back to its beginning")

    def _step(self) -> av.Packet:
        for packet in self.source:
            if packet.size:
                self.next = self._number(packet) + 1
                return packet
        raise Doubt("the file ends earlier than before")

    def _number(self, packet: av.Packet) -> int:
        number = self.index.numbers.get(packet.pts) if packet.pts is not None else None
        if number is None:
            raise Doubt("a packet has another time than before")
        return number
