"""Show pictures, videos and sound to a running server with the official OpenAI client.

    vllm serve MODEL                                                     # in another terminal
    python examples/openai_omni_client.py --base-url http://localhost:8000/v1

MODEL is MiMo-V2.5, or the tiny one of this package (whose towers are random: it reacts to what it
sees and hears, but cannot name it). Media go along as base64 here; `https://` addresses work too.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from typing import Any

from openai import OpenAI

from vllm_mimo.serving import samples


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def image_part(path: Path) -> dict[str, Any]:
    """A JPEG as a part of a message."""
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{encoded(path)}"}}


def video_part(path: Path) -> dict[str, Any]:
    """An mp4 as a part of a message; its sound is heard as well."""
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded(path)}"}}


def audio_part(path: Path) -> dict[str, Any]:
    """A WAV as a part of a message."""
    return {"type": "input_audio", "input_audio": {"data": encoded(path), "format": "wav"}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base-url", default="http://localhost:8000/v1")
    parser.add_argument("--image", type=Path, help="a JPEG; default: a photograph")
    parser.add_argument("--video", type=Path, help="an mp4; default: 5 s with sound")
    parser.add_argument("--audio", type=Path, help="a WAV; default: 30 s of speech")
    args = parser.parse_args()
    image = image_part(args.image or samples.photo())
    video = video_part(args.video or samples.video())
    audio = audio_part(args.audio or samples.speech())

    client = OpenAI(base_url=args.base_url, api_key="none")
    model = client.models.list().data[0].id
    print(f"{model} at {args.base_url}")
    messages = {
        "an image": [image, text_part("What is this?")],
        "a video with sound": [video, text_part("What happens?")],
        "speech": [audio, text_part("What is said?")],
        "all together": [
            text_part("First "),
            image,
            text_part(", then "),
            video,
            text_part(", then "),
            audio,
        ],
    }
    for title, content in messages.items():
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": content}],
            temperature=0,
            max_tokens=32,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        print(f"\n{title}: {reply.usage.prompt_tokens} tokens")
        print(f"  {reply.choices[0].message.content!r}")


if __name__ == "__main__":
    main()
