"""Media that cannot be used get a 4xx that names what is wrong, and harm nobody else."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server import media
from tests.server.conftest import ENV, MEDIA_LIMITS
from tests.server.media import Part
from tests.server.test_bad_requests import post
from vllm_mimo.serving import samples
from vllm_mimo.serving.process import ServerProcess
from vllm_mimo.tiny import checkpoints

GARBAGE = np.random.default_rng(1).integers(0, 256, 30_000, dtype=np.uint8).tobytes()
NOT_BASE64 = "@@ not base64 @@"
CUT = 5_000


def send(server: ServerProcess, name: str, *parts: Part, **fields: Any) -> tuple[int, str]:
    body = {"model": name, "messages": [{"role": "user", "content": list(parts)}], **fields}
    body = {"max_tokens": 4, "temperature": 0, **body}
    return post(server, "/v1/chat/completions", json.dumps(body).encode())


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(server: ServerProcess, model: str) -> Iterator[Ask]:
    """Send one message made of these parts; a good one has to be answered afterwards."""
    yield lambda *parts: send(server, model, *parts, media.text("What is it?"))
    good = [media.image(media.picture(64, 64), "image/png"), media.audio(media.wav(16_000))]
    for parts in ([media.text("Repeat: amber")], [*good, media.video(media.mp4(4))]):
        status, text = send(server, model, *parts)
        assert status == 200, text
    assert server.returncode() is None


def refused(answer: tuple[int, str], reason: str) -> None:
    status, text = answer
    assert 400 <= status < 500, text
    message = json.loads(text)["error"]["message"]
    assert re.search(reason, message, re.DOTALL), message


def url(kind: str, address: str) -> Part:
    return {"type": kind, kind: {"url": address}}


def with_size(png: bytes, width: int, height: int) -> bytes:
    """A PNG file that says it has this many pixels, and holds fewer."""
    header = png[12:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") + png[24:29]
    return png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]


def jpeg() -> bytes:
    return samples.photo().read_bytes()


def mp4() -> bytes:
    return samples.video().read_bytes()


def speech() -> bytes:
    return samples.speech().read_bytes()


def png(width: int, height: int) -> Part:
    return media.image(media.picture(width, height), "image/png")


BAD: dict[str, tuple[Callable[[], list[Part]], str]] = {
    "jpeg cut off": (lambda: [media.image(jpeg()[:CUT])], "image file is truncated"),
    "jpeg of a header alone": (lambda: [media.image(jpeg()[:20])], "Failed to load image"),
    "jpeg that is garbage": (lambda: [media.image(GARBAGE)], "cannot identify image file"),
    "jpeg that is empty": (lambda: [media.image(b"")], "cannot identify image file"),
    "image that is a video": (lambda: [media.image(mp4())], "cannot identify image file"),
    "image of wrong base64": (
        lambda: [media.image_url(f"data:image/png;base64,{NOT_BASE64}")],
        "base64",
    ),
    "image of 100 megapixels": (
        lambda: [png(10_000, 10_000)],
        "10000x10000 .*exceed the maximum of 67108864 pixels",
    ),
    "image that claims a terapixel": (
        lambda: [media.image(with_size(media.picture(1, 1), 10**6, 10**6), "image/png")],
        "image .*1000000000000 pixels",
    ),
    "image of 1x20000": (lambda: [png(1, 20_000)], r"1\D+20000|20000\D+1\b"),
    "image of 20000x1": (lambda: [png(20_000, 1)], r"1\D+20000|20000\D+1\b"),
    "mp4 cut off in the middle": (
        lambda: [media.video(mp4()[: len(mp4()) // 2])],
        "video is cut short",
    ),
    "mp4 cut off before its end": (
        lambda: [media.video(media.mp4(40)[:-200])],
        "video is cut short",
    ),
    "mp4 that is garbage": (lambda: [media.video(GARBAGE)], "file of 30000 bytes cannot be read"),
    "mp4 that is empty": (lambda: [media.video(b"")], "file of 0 bytes cannot be read"),
    "video that is speech": (lambda: [media.video(speech())], "no video track"),
    "video of wrong base64": (
        lambda: [url("video_url", f"data:video/mp4;base64,{NOT_BASE64}")],
        "base64",
    ),
    "wav without samples": (lambda: [media.audio(media.wav(0))], "no sound that can be decoded"),
    "wav that is an empty file": (lambda: [media.audio(b"")], r"'audio'.* is empty"),
    "wav that is garbage": (lambda: [media.audio(GARBAGE)], "file of 30000 bytes cannot be read"),
    "wav cut off in its header": (
        lambda: [media.audio(speech()[:20])],
        "file of 20 bytes cannot be read",
    ),
    "audio that is an image": (lambda: [media.audio(jpeg())], "cannot be read"),
    "audio of wrong base64": (
        lambda: [
            {"type": "input_audio", "input_audio": {"data": NOT_BASE64, "format": "wav"}},
        ],
        "base64",
    ),
    "image from an unknown scheme": (
        lambda: [media.image_url("ftp://example.com/cat.jpg")],
        "URL must be either a HTTP, data or file URL",
    ),
    "video from an unknown scheme": (
        lambda: [url("video_url", "ftp://example.com/cat.mp4")],
        "URL must be either a HTTP, data or file URL",
    ),
    "image from the server's own files": (
        lambda: [media.image_url("file:///etc/hostname")],
        "--allowed-local-media-path",
    ),
    "image in a data URL of another encoding": (
        lambda: [media.image_url("data:image/svg+xml,<svg/>")],
        "Only base64 data URLs",
    ),
    "image from no address": (lambda: [media.image_url("")], r"'image'.* is empty"),
    "data URL without data": (lambda: [media.image_url("data:image/png;base64")], "data URL"),
    "more images than allowed": (
        lambda: [png(64, 64)] * (MEDIA_LIMITS["image"] + 1),
        f"At most {MEDIA_LIMITS['image']} image",
    ),
    "more videos than allowed": (
        lambda: [media.video(media.mp4(4))] * (MEDIA_LIMITS["video"] + 1),
        f"At most {MEDIA_LIMITS['video']} video",
    ),
    "more audio than allowed": (
        lambda: [media.audio(media.wav(8_000))] * (MEDIA_LIMITS["audio"] + 1),
        f"At most {MEDIA_LIMITS['audio']} audio",
    ),
    "a good image before a bad video": (
        lambda: [png(64, 64), media.video(GARBAGE)],
        "file of 30000 bytes cannot be read",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), BAD.values(), ids=BAD)
def test_bad_media_are_refused_with_the_reason(
    ask: Ask, parts: Callable[[], list[Part]], reason: str
) -> None:
    refused(ask(*parts()), reason)


def test_an_address_on_the_server_that_holds_nothing(ask: Ask, server: ServerProcess) -> None:
    refused(ask(media.image_url(server.url + "/nothing.jpg")), "HTTP 404")
    refused(ask(media.image_url(server.url + "/version")), "cannot identify image file")


@pytest.fixture(scope="module")
def text_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A checkpoint without towers; started after the shared server's tests, beside it."""
    folder: Path = tmp_path_factory.mktemp("pro")
    checkpoints.write_random(folder / "model", "pro")
    arguments = ["--served-model-name", "pro"]
    log = folder / "vllm.log"
    with ServerProcess(folder / "model", arguments, env=ENV, log=log) as running:
        yield running


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_a_checkpoint_without_towers_takes_text_only(text_server: ServerProcess, kind: str) -> None:
    part = {
        "image": media.image(media.picture(64, 64), "image/png"),
        "video": media.video(media.mp4(4)),
        "audio": media.audio(media.wav(16_000)),
    }[kind]
    refused(send(text_server, "pro", part), "not a multimodal model")
    status, text = send(text_server, "pro", media.text("Repeat: amber"))
    assert status == 200, text
