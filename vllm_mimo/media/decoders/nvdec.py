"""NVIDIA's hardware decoder, through torchcodec. Pictures are copied to host memory.

Its colours may differ from PyAV's by rounding. What it cannot decode is left to PyAV. The process
that decodes needs a CUDA context, a few hundred MiB of the device.
"""

from __future__ import annotations

import torch

from vllm_mimo.media.decoders.job import Job
from vllm_mimo.media.decoders.torchcodec import decode_on

if not torch.cuda.is_available():
    raise ImportError(
        "the video decoder 'nvdec' needs a CUDA device, and torch finds none in this process; "
        "choose 'pyav'"
    )


def decode(job: Job) -> int:
    """Decode a part on the current device; see `job.Decoder`."""
    return decode_on(job, "cuda")
