"""Training batches: text, conversations and repeated noise, packed to one length."""

from __future__ import annotations

import random
from collections.abc import Iterator

import jinja2
import numpy as np
import torch
from tokenizers import Tokenizer

from vllm_mimo.tiny import tasks
from vllm_mimo.tiny.tokenizer import chat_template

Mix = dict[str, float]
MIX: Mix = {"text": 0.35, "conversation": 0.35, "repeated noise": 0.3}
"""Share of each kind among the first stage's sequences."""
TALK_MIX: Mix = {"text": 0.2, "conversation": 0.65, "repeated noise": 0.15}
"""The same for the last stage, whose sequences are long enough for tool declarations."""


class BatchSource:
    """Endless batches of token ids, the same for the same seed.

    Args:
        tokenizer: the trained tokenizer.
        text: ids of the whole training text, one document after another.
        seed: of every draw.
        mix: share of each kind among the sequences.
    """

    def __init__(
        self, tokenizer: Tokenizer, text: np.ndarray, seed: int = 0, mix: Mix = MIX
    ) -> None:
        self.tokenizer, self.text, self.mix = tokenizer, text, mix
        self.rng = random.Random(seed)
        end = tokenizer.token_to_id("<|endoftext|>")
        if end is None:
            raise ValueError("the tokenizer has no <|endoftext|>")
        self.end: int = end
        self.plain_ids: int = end  # special ids come last: everything below is text
        self.template = jinja2.Environment().from_string(chat_template())

    def conversation(self, most: int) -> list[int]:
        """One made-up conversation as ids."""
        made = tasks.draw(self.rng, most)
        text = self.template.render(
            messages=made.messages, tools=made.tools or None, enable_thinking=made.thinking
        )
        return [*self.tokenizer.encode(text).ids, self.end]

    def sequence(self, length: int) -> list[int]:
        """`length` ids of one kind, drawn by `mix`."""
        kind = self.rng.choices(list(self.mix), weights=list(self.mix.values()))[0]
        if kind == "text":
            start = self.rng.randrange(len(self.text) - length)
            return self.text[start : start + length].tolist()
        ids: list[int] = []
        while len(ids) < length:
            if kind == "conversation":
                ids += self.conversation(most=max(8, length // 16))
            else:
                ids += self.noise(most=max(48, length // 4))
        return ids[:length]

    def noise(self, most: int) -> list[int]:
        """Random ids, two to four times over: nothing but copying predicts them.

        Often of a small pool of ids: a model that cannot copy yet learns it on those first.
        """
        pool = self.rng.sample(range(self.plain_ids), self.rng.choice((16, 64, 256, 1024)))
        return self.rng.choices(pool, k=self.rng.randint(4, most)) * self.rng.randint(2, 4)

    def batches(self, batch: int, length: int) -> Iterator[torch.Tensor]:
        """Yield (batch, length) int64 tensors for ever."""
        while True:
            yield torch.tensor([self.sequence(length) for _ in range(batch)])
