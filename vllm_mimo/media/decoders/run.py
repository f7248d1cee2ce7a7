"""Running the parts of one video side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from vllm_mimo.media.decoders.budget import Share
from vllm_mimo.media.decoders.job import Decoder, Job


def run(decode: Decoder, jobs: Sequence[Job], share: Share) -> int:
    """Do all jobs, each with a thread of the budget. Returns how many frames were decoded.

    Jobs have one `stop` in common. Raises what the first one to fail raises, when all have ended.
    """

    def one(job: Job) -> int:
        with share.take():
            if job.stop.is_set():
                return 0
            try:
                return decode(job)
            except BaseException:
                job.stop.set()
                raise

    if len(jobs) == 1:
        return one(jobs[0])
    with ThreadPoolExecutor(min(len(jobs), share.budget.threads), "mimo-video") as pool:
        try:
            return sum(pool.map(one, jobs))
        except BaseException:
            jobs[0].stop.set()
            raise
