"""The demo's second part: a photograph, a video with sound and speech, each shown twice.

The words before a medium differ between the rounds, so that the prefix cache cannot help: what
makes the second round quick is that the encoders' work is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai_omni_client import audio_part, image_part, video_part

from vllm_mimo.serving import samples
from vllm_mimo.serving.metrics import EncoderCache, difference, read

if TYPE_CHECKING:
    from serve_demo import Chat, Reply

LEADS = ("Here is something: ", "Once more, please: ")
"""The words before the medium in each round."""


def parts() -> dict[str, dict[str, Any]]:
    """Title -> the medium as a part of a chat message."""
    photo, video, speech = samples.photo(), samples.video(), samples.speech()
    return {
        f"image_url: {photo.name}, {photo.stat().st_size:,} bytes": image_part(photo),
        f"video_url: {video.name}, {video.stat().st_size:,} bytes, with sound": video_part(video),
        f"input_audio: {speech.name}, {speech.stat().st_size:,} bytes": audio_part(speech),
    }


def show_twice(chat: Chat) -> tuple[list[list[Reply]], list[EncoderCache]]:
    """Both rounds: the replies, and what the server's encoder cache counted meanwhile."""
    rounds, counted = [], []
    media = parts()
    for number, lead in enumerate(LEADS, start=1):
        print(f"\nMedia, round {number}")
        before = read(chat.server.url)
        replies = []
        for title, part in media.items():
            content = [{"type": "text", "text": lead}, part]
            replies.append(
                chat.ask(
                    title,
                    [{"role": "user", "content": content}],
                    max_tokens=16,
                    extra_body={"chat_template_kwargs": {"enable_thinking": False}},
                )
            )
        rounds.append(replies)
        counted.append(EncoderCache.of(difference(before, read(chat.server.url))))
    return rounds, counted


def problems(rounds: list[list[Reply]], counted: list[EncoderCache]) -> list[str]:
    """What is not as it should be."""
    found = []
    if any(not reply.content for replies in rounds for reply in replies):
        found.append("an answer about a medium was empty")
    if [(c.hits, c.misses) for c in counted] != [(0, 3), (3, 0)]:
        found.append(f"the encoder cache counted {counted}, not 3 misses and then 3 hits")
    return found


def table(counted: list[EncoderCache]) -> None:
    print("\nEncoder cache by the server's own metrics (in media items)")
    print(f"  {'round':8}{'embedded':>10}{'found':>8}")
    for name, cache in zip(("first", "second"), counted, strict=True):
        print(f"  {name:8}{cache.misses:10}{cache.hits:8}")
