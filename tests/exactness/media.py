"""Requests with media: what they hold, how the engine runs them, and their exact output.

The oracle lays the prompt out by itself, in loops, and joins the plain-torch towers to the
plain-torch text model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vllm_mimo.checkpoints.codec import TokenizerGeometry
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.towers import AudioGeometry, VisionGeometry
from vllm_mimo.media.audio import log_mel
from vllm_mimo.media.images import picture_patches, video_patches
from vllm_mimo.media.pictures import picture_tensor
from vllm_mimo.media.settings import MediaSettings
from vllm_mimo.reference.audio import AudioTower
from vllm_mimo.reference.text import MiMoV2Reference
from vllm_mimo.reference.vision import VisionTower
from vllm_mimo.tiny.checkpoints import bundled_tokenizer, read_split_state, read_tower_state

PLACEHOLDERS = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
    "audio": "<|mimo_audio_start|><|audio_pad|><|mimo_audio_end|>",
}


@dataclass
class Medium:
    """An image (H, W, 3), frames (N, H, W, 3) with their times, or samples at 24 kHz."""

    kind: str
    data: np.ndarray
    times: list[float] = field(default_factory=list)
    sound: np.ndarray | None = None
    """Of a video, from time 0."""


Part = str | Medium


def as_request(parts: Sequence[Part]) -> dict[str, Any]:
    """What `LLM.generate` takes."""
    media: dict[str, list[Any]] = {}
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        text += PLACEHOLDERS[part.kind]
        item: Any = part.data
        if part.kind == "video":
            item = (part.data, {"timestamps": part.times})
            if part.sound is not None:
                item[1]["audio"] = part.sound
        elif part.kind == "audio":
            item = (part.data, 24_000)
        media.setdefault(part.kind, []).append(item)
    return {"prompt": text, "multi_modal_data": media}


def generate(llm: Any, requests: list[dict[str, Any]], max_tokens: int) -> list[dict[str, Any]]:
    """Run in the engine's process: prompt tokens, output tokens and cached tokens of each."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    return [
        {
            "prompt": list(o.prompt_token_ids),
            "output": list(o.outputs[0].token_ids),
            "cached": o.num_cached_tokens or 0,
        }
        for o in llm.generate(requests, sampling, use_tqdm=False)
    ]


class Oracle:
    """The whole omni model on a checkpoint, in plain torch."""

    def __init__(self, folder: Path) -> None:
        config, state = read_split_state(folder)
        towers = read_tower_state(folder)
        self.settings = MediaSettings.from_config(config)
        self.text = MiMoV2Reference(TextGeometry.from_config(config))
        self.text.load_state_dict(state)
        self.vision = VisionTower(VisionGeometry.from_config(config))
        self.vision.load_state_dict(towers.vision)
        self.audio = AudioTower(
            AudioGeometry.from_config(config),
            TokenizerGeometry.from_config(towers.tokenizer_config),
        )
        self.audio.load_state_dict(towers.audio | towers.tokenizer)
        self.tokenizer = bundled_tokenizer()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _words(self, text: str) -> tuple[list[int], torch.Tensor]:
        ids = self.ids(text)
        return ids, self.text.model.embed_tokens(torch.tensor(ids, dtype=torch.long))

    def _pads(self, name: str, embedded: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        return self.ids(f"<|{name}_pad|>") * len(embedded), embedded

    def _medium(self, medium: Medium) -> list[tuple[list[int], torch.Tensor]]:
        vision, audio = self.settings.vision, self.settings.audio
        if medium.kind == "image":
            pixels, grid = picture_patches(picture_tensor(medium.data), vision)
            seen = self.vision(pixels, torch.tensor([grid]))
            return [
                self._words("<|vision_start|>"),
                self._pads("image", seen),
                self._words("<|vision_end|>"),
            ]
        if medium.kind == "audio":
            heard = self.audio(log_mel(torch.from_numpy(medium.data), audio))
            return [
                self._words("<|mimo_audio_start|>"),
                self._pads("audio", heard),
                self._words("<|mimo_audio_end|>"),
            ]
        pixels, grid = video_patches(medium.data, vision)
        seen = self.vision(pixels, torch.tensor([grid])).unflatten(0, (grid[0], -1))
        heard = torch.zeros(0, seen.shape[-1])
        if medium.sound is not None:
            heard = self.audio(log_mel(torch.from_numpy(medium.sound), audio))
        times = [*medium.times[::2], medium.times[-1] + medium.times[1] - medium.times[0]]
        made = [self._words("<|mimo_video_start|>")]
        for i, time in enumerate(times[:-1]):
            made.append(self._words(f"{int(time) // 60:02d}:{int(time) % 60:02d}"))
            made += [self._words("<|vision_start|>"), self._pads("video", seen[i])]
            made.append(self._words("<|vision_end|>"))
            part = heard[int(time * 6.25) : int(times[i + 1] * 6.25)]
            if len(part):
                made += [self._words("<|mimo_audio_start|>"), self._pads("audio", part)]
                made.append(self._words("<|mimo_audio_end|>"))
        return [*made, self._words("<|mimo_video_end|>")]

    @torch.no_grad()
    def prompt(self, parts: Sequence[Part]) -> tuple[list[int], torch.Tensor]:
        """Token ids of the whole prompt, and an embedding (tokens, hidden) for each."""
        made: list[tuple[list[int], torch.Tensor]] = []
        for part in parts:
            made += [self._words(part)] if isinstance(part, str) else self._medium(part)
        return [i for ids, _ in made for i in ids], torch.cat([e for _, e in made])

    def logits(self, parts: Sequence[Part]) -> Callable[[Sequence[int]], torch.Tensor]:
        """Function (prompt and output tokens) -> logits (tokens, vocab)."""
        ids, embedded = self.prompt(parts)

        @torch.no_grad()
        def of(tokens: Sequence[int]) -> torch.Tensor:
            assert list(tokens[: len(ids)]) == ids
            more = self.text.model.embed_tokens(torch.tensor(tokens[len(ids) :]))
            return self.text.lm_head(self.text.hidden_of(torch.cat([embedded, more])[None]))[0]

        return of
