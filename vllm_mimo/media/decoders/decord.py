"""decord, for those who ask for it. It gives wrong frames of some files, which its own times do not
tell (seen here: H.264 with intra refresh, MPEG-4 with B pictures), and crashes the process on some
that are damaged: not for files of strangers.
"""

from __future__ import annotations

import io

from vllm_mimo.media.decoders.job import Doubt, Job

try:
    import decord
except (ImportError, OSError, RuntimeError) as error:
    raise ImportError(
        "the video decoder 'decord' needs the package decord, which cannot be imported "
        f"({error}); install it or choose 'pyav'"
    ) from error

BATCH = 8
"""Frames that are decoded before they are put away."""


def decode(job: Job) -> int:
    """Decode a part with one thread; see `job.Decoder`."""
    if not job.look.plain:
        raise Doubt("the video is to be turned")
    try:
        reader = decord.VideoReader(io.BytesIO(job.data), ctx=decord.cpu(0), num_threads=1)
        if len(reader) != job.total:
            raise Doubt(f"decord finds {len(reader)} frames instead of {job.total}")
        wanted = job.part.wanted
        for first in range(0, len(wanted), BATCH):
            if job.stop.is_set():
                return 0
            some = wanted[first : first + BATCH]
            numbers = [frame.frame for frame in some]
            for frame, time in zip(some, reader.get_frame_timestamp(numbers), strict=True):
                if abs(float(time[0]) - job.seconds(frame)) > job.tolerance:
                    raise Doubt(f"frame {frame.frame} has another time than its packet")
            pictures = reader.get_batch(numbers).asnumpy()
            if pictures.shape[1:] != (job.look.height, job.look.width, 3):
                raise Doubt("frames are of another size than the first one")
            for frame, picture in zip(some, pictures, strict=True):
                job.put(frame.place, picture)
    except (RuntimeError, decord.DECORDError) as error:
        raise Doubt(f"decord: {error}") from error
    return 0
