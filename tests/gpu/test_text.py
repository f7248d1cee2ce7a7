"""The torch-level code of the text model on a CUDA device against the same code on the CPU."""

from __future__ import annotations

import pytest
import torch

from vllm_mimo.checkpoints import qkv
from vllm_mimo.checkpoints.fp8 import dequantize, quantize
from vllm_mimo.checkpoints.geometry import AttentionGeometry
from vllm_mimo.reference.attention import attend_blocked, attend_dense

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GEOMETRY = AttentionGeometry(64, 8, 192, 128, 1e4, 128, True)


def test_a_rank_gathers_its_fp8_blocks_on_the_device():
    weight = torch.randn(GEOMETRY.qkv_rows, 256, generator=torch.Generator().manual_seed(0))
    packed, scale = quantize(weight, (128, 128), tiles=4)
    for ranks in (1, 4, 8, 16):
        plan = qkv.plan_rank(GEOMETRY, 4, 128, ranks - 1, ranks)
        expected = dequantize(
            *qkv.gather_blocks(plan, list(packed.chunk(4)), list(scale.chunk(4))), (128, 128)
        )
        tiles, scales = list(packed.cuda().chunk(4)), list(scale.cuda().chunk(4))
        got = dequantize(*qkv.gather_blocks(plan, tiles, scales), (128, 128))
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("window", (None, 128))
def test_attention_on_the_device(window: int | None):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, 600, width, generator=generator)
        for heads, width in ((64, 192), (8, 192), (8, 128))
    )
    sink = torch.randn(64, generator=generator) if window else None
    expected = attend_dense(q, k, v, window, sink)
    on_device = [x.cuda() if x is not None else None for x in (q, k, v, sink)]
    for attend in (attend_dense, attend_blocked):
        got = attend(*on_device[:3], window, on_device[3])
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
