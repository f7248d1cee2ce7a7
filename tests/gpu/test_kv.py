"""Bounded replay in plain torch, and the slots that a replay does not write, on the device.

`DEVICE=cpu` runs them without a CUDA device.
"""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
import torch

from tests.paths import ROOT
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.kv.sizing import KVShape
from vllm_mimo.reference.attention import attend_dense
from vllm_mimo.reference.text import MiMoV2Reference
from vllm_mimo.worker.parts import WriteGuardPart

DEVICE = os.environ.get("DEVICE", "cuda")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE != "cpu" and not torch.cuda.is_available(), reason="needs a CUDA device"
    ),
]

WINDOW = 16
PATTERN = "FSSSFSSF"
HIT, TOKENS = 200, 230
"""Tokens whose full-attention KV is cached, and tokens of the prompt."""


def small_geometry() -> TextGeometry:
    """The tiny model's, with a small window and no MoE: each token's row is then computed alone."""
    config = json.loads((ROOT / "vllm_mimo" / "assets" / "mimo-tiny" / "config.json").read_text())
    geometry = TextGeometry.from_config(config)
    return dataclasses.replace(
        geometry,
        layer_is_swa=tuple(kind == "S" for kind in PATTERN),
        layer_is_moe=(False,) * len(PATTERN),
        num_mtp_layers=0,
        swa=dataclasses.replace(geometry.swa, window=WINDOW),
    )


class KVCache:
    """Keeps every layer's keys and values; full layers take the first tokens' from `hit`."""

    def __init__(self, hit: KVCache | None = None) -> None:
        self.hit = hit
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(self, q, k, v, window, sink):
        if self.hit is not None and window is None:
            cached = self.hit.layers[len(self.layers)]
            k, v = (
                torch.cat([old[:, :, :HIT], new[:, :, HIT:]], dim=2)
                for old, new in zip(cached, (k, v), strict=True)
            )
        self.layers.append((k, v))
        return attend_dense(q, k, v, window, sink)


@pytest.fixture(scope="module")
def model() -> MiMoV2Reference:
    torch.manual_seed(0)
    model = MiMoV2Reference(small_geometry())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.to(DEVICE).eval()


def run(model: MiMoV2Reference, embedded: torch.Tensor, cache: KVCache) -> torch.Tensor:
    for layer in model.model.layers:
        layer.self_attn.attend = cache.attend
    with torch.no_grad():
        return model.hidden_of(embedded)[0]


def resumed(
    model: MiMoV2Reference, start: int
) -> tuple[torch.Tensor, torch.Tensor, KVCache, KVCache]:
    """Hidden states from a cold run and from a replay that starts at `start`, and the KV of both.

    Below `start`, where a replay computes nothing, its SWA layers find other tokens' KV.
    """
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.geometry.vocab_size
    tokens, others = torch.randint(0, vocabulary, (2, 1, TOKENS), generator=generator).to(DEVICE)
    cold = KVCache()
    expected = run(model, model.model.embed_tokens(tokens), cold)
    mixed = torch.cat([others[:, :start], tokens[:, start:]], dim=1)
    warm = KVCache(hit=cold)
    return expected, run(model, model.model.embed_tokens(mixed), warm), cold, warm


def test_a_replay_over_the_bound_is_exact_to_the_bit(model) -> None:
    bound = KVShape.from_geometry(model.geometry).replay_bound
    assert bound == PATTERN.count("S") * (WINDOW - 1) == 75
    expected, got, _, _ = resumed(model, HIT - bound)
    assert torch.equal(got[HIT:], expected[HIT:])


def test_a_replay_of_one_layer_less_is_not(model) -> None:
    expected, got, _, _ = resumed(model, HIT - (PATTERN.count("S") - 1) * (WINDOW - 1))
    assert not torch.equal(got[HIT], expected[HIT])
    assert not torch.equal(got[-1], expected[-1]), "full-attention layers spread it to the end"


def test_swa_kv_is_exact_one_window_before_the_hit(model) -> None:
    """From there on it may be published (`Resume.exact_from`); right before it may not."""
    start = HIT - 75
    exact_from = start + 75 - (WINDOW - 1)
    _, _, cold, warm = resumed(model, start)
    for index, (theirs, ours) in enumerate(zip(cold.layers, warm.layers, strict=True)):
        if PATTERN[index] == "S":
            for a, b in zip(theirs, ours, strict=True):
                assert torch.equal(a[:, :, exact_from:], b[:, :, exact_from:])
    last = PATTERN.rindex("S")
    before = slice(exact_from - (WINDOW - 1), exact_from)
    assert not torch.equal(cold.layers[last][0][:, :, before], warm.layers[last][0][:, :, before])


def test_slots_below_the_write_start_are_not_written() -> None:
    """As the cache kernels see them: a row a group of one buffer, -1 for what is not written."""
    buffer = torch.arange(2 * 64, device=DEVICE).view(2, 64)
    before = buffer.cpu().clone()
    guard = WriteGuardPart(None)
    guard.write_starts = {"a": 12, "c": 100, "gone": 5}
    guard.slot_mappings(buffer[:, :40], ["b", "a", "c"], [0, 10, 90], [0, 8, 16, 30])
    full, window = buffer.cpu()
    assert torch.equal(window, before[1])
    expected = before[0].clone()
    expected[8:10] = -1  # "a" computes 10 to 17, and 12 is the first to write
    expected[16:26] = -1  # "c" computes 90 to 103
    assert torch.equal(full, expected)
    cache = torch.zeros(64, device=DEVICE)
    written = full[:40][full[:40] >= 0].to(DEVICE)
    cache[written] = 1
    assert cache.sum() == 40 - 12
