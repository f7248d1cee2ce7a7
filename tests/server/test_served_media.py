"""Pictures, videos and sound through the OpenAI client, and which caches they meet."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import av
import pytest
from openai import OpenAI
from PIL import Image

from tests.server import media
from tests.server.media import Part
from vllm_mimo.serving import metrics, samples
from vllm_mimo.serving.metrics import EncoderCache, MediaCache, PrefixCache
from vllm_mimo.serving.process import ServerProcess

PHOTO_TOKENS = (512 // 32) * (608 // 32)
"""Of the sample of 512x600: 32 pixels a side make a token, and 600 is rounded to 608."""
SPEECH_TOKENS = 188
"""Of the sample's 30 s: 25 codes a second, four to a token."""
LONG = "Note: " + "the amber falcon of the river is in Oslo. " * 40
"""More than two blocks of the prefix cache."""


@dataclass
class Answer:
    text: str
    usage: Any
    prefix: PrefixCache
    media: MediaCache
    encoder: EncoderCache


class Asker:
    """Sends one message, and reads what the server counted for it."""

    def __init__(self, client: OpenAI, model: str, server: ServerProcess) -> None:
        self.client, self.model, self.server = client, model, server

    def __call__(self, *parts: Part) -> Answer:
        before = metrics.read(self.server.url)
        messages = [{"role": "user", "content": list(parts)}]
        reply = self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            temperature=0,
            max_tokens=16,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        grown = metrics.difference(before, metrics.read(self.server.url))
        text = reply.choices[0].message.content or ""
        return Answer(
            text,
            reply.usage,
            PrefixCache.of(grown),
            MediaCache.of(grown),
            EncoderCache.of(grown),
        )


@pytest.fixture(scope="module")
def ask(client: OpenAI, model: str, server: ServerProcess) -> Asker:
    return Asker(client, model, server)


def media_tokens(answer: Answer) -> dict[str, int]:
    return answer.usage.prompt_tokens_details.model_extra["multimodal_tokens"]


def photo() -> Part:
    return media.image(samples.photo().read_bytes())


def video() -> Part:
    return media.video(samples.video().read_bytes())


def speech() -> Part:
    return media.audio(samples.speech().read_bytes())


def mirrored(data: bytes) -> bytes:
    """Another picture of the same size."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(file, "jpeg")
    return file.getvalue()


def muted(data: bytes) -> bytes:
    """The same pictures without the sound track."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return file.getvalue()


def test_all_kinds_interleaved_in_one_message_and_the_same_again(ask: Asker) -> None:
    parts = [
        media.text("Look at the picture: "),
        photo(),
        media.text(", at the video: "),
        video(),
        media.text(", and hear the sound: "),
        speech(),
        media.text(". What is it?"),
    ]
    first, second = ask(*parts), ask(*parts)
    tokens = media_tokens(first)
    assert (tokens["image"], tokens["audio"]) == (PHOTO_TOKENS, SPEECH_TOKENS)
    assert first.usage.prompt_tokens == first.prefix.queries > sum(tokens.values())
    # Other tests may have shown the same files to this server; the demo's own starts with none.
    assert first.media.queries == first.encoder.hits + first.encoder.misses == 3
    # Again: nothing is prepared or embedded anew, and most of the prompt is in the prefix cache.
    assert second.text == first.text
    assert second.usage.prompt_tokens == first.usage.prompt_tokens
    assert second.media == MediaCache(queries=3, hits=3)
    assert second.encoder.misses == 0
    assert second.prefix.hits == second.usage.prompt_tokens_details.cached_tokens
    assert second.prefix.hits > first.usage.prompt_tokens * 0.7


def test_a_videos_sound_is_heard_in_place(ask: Asker) -> None:
    data = samples.video().read_bytes()
    sounding = ask(video(), media.text("?"))
    silent = ask(media.video(muted(data)), media.text("?"))
    more = sounding.usage.prompt_tokens - silent.usage.prompt_tokens
    # 25 codes a second, four to a token, for the 5.3 s; and marks round each piece.
    assert 5 * 25 / 4 < more < 5 * 25 / 4 + 20


def test_media_are_found_again_where_the_prefix_cache_cannot_help(ask: Asker) -> None:
    """Another text before the medium changes the hash of every block that follows."""
    picture = media.image(media.picture(320, 256, seed=1), "image/png")
    sound, film = media.audio(media.wav(20_000)), media.video(media.mp4(6))
    for medium in (picture, sound, film):
        first = ask(media.text("A first look: "), medium, media.text(LONG))
        second = ask(media.text("Looked at again: "), medium, media.text(LONG))
        assert (first.media, first.encoder) == (MediaCache(1, hits=0), EncoderCache(0, misses=1))
        assert (second.media, second.encoder) == (MediaCache(1, hits=1), EncoderCache(1, misses=0))
        assert second.prefix.hits == 0


def test_another_picture_after_the_same_text_is_no_prefix_hit(ask: Asker) -> None:
    data = samples.photo().read_bytes()
    ask(media.text(LONG))  # so that the text is in the cache, whatever ran before
    before = ask(media.text(LONG)).usage.prompt_tokens
    first = ask(media.text(LONG), media.image(data), media.text("What is it?"))
    other = ask(media.text(LONG), media.image(mirrored(data)), media.text("What is it?"))
    again = ask(media.text(LONG), media.image(data), media.text("What is it?"))
    assert first.usage.prompt_tokens == other.usage.prompt_tokens
    assert 0 < other.prefix.hits < before
    assert (other.media.hits, other.encoder) == (0, EncoderCache(hits=0, misses=1))
    assert again.prefix.hits > before
    assert again.text == first.text


def test_streamed_answer_is_the_whole_one(ask: Asker) -> None:
    parts = [photo(), media.text("What is it?")]
    whole = ask(*parts)
    stream = ask.client.chat.completions.create(
        model=ask.model,
        messages=[{"role": "user", "content": parts}],
        temperature=0,
        max_tokens=16,
        stream=True,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert "".join(pieces) == whole.text


def test_text_alone_still_answers_right_after_media(ask: Asker) -> None:
    answer = ask(media.text("Repeat: amber falcon river pebble walnut"))
    assert answer.text == "amber falcon river pebble walnut"
    assert answer.media == MediaCache(0, 0)
