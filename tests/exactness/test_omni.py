"""Whole requests with pictures, videos and sound on the real engine equal the oracle's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.engine import Engine
from tests.exactness.media import Medium, Oracle, Part, as_request, generate
from tests.exactness.oracle import check_greedy
from vllm_mimo.tiny.checkpoints import trained_folder

TOKENS = 24


def picture(seed: int, height: int = 480, width: int = 640) -> Medium:
    """Coloured rectangles on noise."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 60, (height, width, 3), dtype=np.uint8)
    for _ in range(6):
        y, x = rng.integers(0, height // 2), rng.integers(0, width // 2)
        data[y : y + height // 3, x : x + width // 3] = rng.integers(0, 256, 3)
    return Medium("image", data)


def sound(seed: int, seconds: float) -> np.ndarray:
    time = np.arange(int(24_000 * seconds)) / 24_000
    noise = np.random.default_rng(seed).standard_normal(len(time))
    return (0.3 * np.sin(2 * np.pi * (200 + 90 * seed) * time) + 0.02 * noise).astype(np.float32)


def video(seed: int, frames: int, heard: bool) -> Medium:
    data = np.stack([picture(seed * 100 + i, 96, 128).data for i in range(frames)])
    times = [0.4 + 1.3 * i for i in range(frames)]
    return Medium("video", data, times, sound(seed, times[-1] - 1) if heard else None)


def turns(*parts: Part) -> list[Part]:
    return ["<|im_start|>user\n", *parts, "<|im_end|><|im_start|>assistant\n<think></think>"]


REQUESTS: list[list[Part]] = [
    turns("Look: ", picture(1), " and hear: ", Medium("audio", sound(1, 3.3)), " What is it?"),
    turns(video(2, 6, True), "Then ", picture(2, 41, 500), ", then ", video(3, 3, False), "."),
    turns(
        Medium("audio", sound(4, 0.01)),
        picture(4, 33, 31),
        picture(5, 500, 20),
        Medium("audio", sound(5, 21.0)),
        video(6, 1 + 1, True),
        "Tell all.",
    ),
    turns("No media at all: the sea is wide."),
]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(trained_folder())


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Chunks of 96 tokens cut every picture of 300 tokens in several; four requests at once."""
    with Engine(
        trained_folder(), max_num_batched_tokens=96, max_num_seqs=4, enable_prefix_caching=True
    ) as made:
        yield made


def test_interleaved_media_in_a_batch_with_and_without_caches(engine: Engine, oracle: Oracle):
    sent = [as_request(parts) for parts in REQUESTS]
    first = engine.run(generate, sent, TOKENS)
    again = engine.run(generate, sent, TOKENS)
    with Engine(
        trained_folder(),
        max_num_batched_tokens=4096,
        max_num_seqs=4,
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
    ) as plain:
        without = plain.run(generate, sent, TOKENS)
    for parts, one, two, three in zip(REQUESTS, first, again, without, strict=True):
        assert one["prompt"] == oracle.prompt(parts)[0]
        check_greedy(oracle.logits(parts), [one["prompt"]], [one["output"]])
        assert one["output"] == two["output"] == three["output"]
    assert [o["cached"] for o in first] == [o["cached"] for o in without] == [0] * 4
    whole = (len(again[0]["prompt"]) - 1) // 64 * 64
    assert again[0]["cached"] == whole > 256, "the picture's tokens among them"


def test_another_picture_under_the_same_text_is_no_hit(engine: Engine, oracle: Oracle):
    requests = [turns(picture(seed), "What is this?") for seed in (11, 12, 11)]
    outputs = [engine.run(generate, [as_request(parts)], TOKENS)[0] for parts in requests]
    assert [o["cached"] for o in outputs] == [0, 0, 256]
    assert outputs[0]["prompt"] == outputs[1]["prompt"], "the tokens are the same"
    assert outputs[0]["output"] == outputs[2]["output"]
    for parts, output in zip(requests, outputs, strict=True):
        check_greedy(oracle.logits(parts), [output["prompt"]], [output["output"]])


def test_outputs_follow_what_is_seen_and_heard(engine: Engine):
    """So that equal outputs above mean something."""
    for make in (
        lambda seed: picture(seed),
        lambda seed: Medium("audio", sound(seed, 4.0)),
        lambda seed: video(seed, 4, True),
    ):
        sent = [as_request(turns(make(seed), "Describe it.")) for seed in range(20, 30)]
        outputs = [tuple(o["output"]) for o in engine.run(generate, sent, 2 * TOKENS)]
        assert len(set(outputs)) >= 6, "a model that ignored its media would give one"
