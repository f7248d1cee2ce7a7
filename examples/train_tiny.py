"""Train the tiny MiMo that this project ships, on text that ships with Python and Debian.

    python examples/train_tiny.py --out DIR [--short-steps 900 --long-steps 300 --talk-steps 350]

Twelve layers in MiMo's hybrid pattern, sinks, experts and three MTP layers, trained together:
about 40 core-minutes. Writes a hub-style checkpoint, loss.json and loss.png to DIR.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.reference.attention import attend_blocked
from vllm_mimo.reference.text import MiMoV2Reference, MoE, Router
from vllm_mimo.tiny import corpus
from vllm_mimo.tiny.batches import MIX, TALK_MIX, BatchSource, Mix
from vllm_mimo.tiny.checkpoints import add_towers, read_split_state
from vllm_mimo.tiny.initial import lay_out
from vllm_mimo.tiny.shapes import trained_config
from vllm_mimo.tiny.tokenizer import train_tokenizer
from vllm_mimo.tiny.write import write_checkpoint

MTP_WEIGHT = 0.3
MTP_STRIDE = 8
"""MTP losses look at every eighth position: the LM head is the dearest product of the model."""
BALANCE_RATE = 0.001
PEAK_RATE = 2e-3
MTP_FROM = 0.5
"""Share of the steps after which the MTP layers join in: they learn quickly on a trained trunk."""


def losses(
    model: MiMoV2Reference, tokens: torch.Tensor, with_mtp: bool = True
) -> list[torch.Tensor]:
    """Cross entropies per token: the trunk's, then each MTP layer's, for tokens (batch, T)."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.hidden(tokens)
        out = [_cross_entropy(model, hidden[:, :-1], tokens[:, 1:])]
        states = model.mtp_hidden(tokens, hidden) if with_mtp else []
        for k, state in enumerate(states):
            state, target = state[:, :-1], tokens[:, k + 2 :]
            out.append(_cross_entropy(model, state[:, ::MTP_STRIDE], target[:, ::MTP_STRIDE]))
    return out


def _cross_entropy(
    model: MiMoV2Reference, hidden: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    return F.cross_entropy(model.lm_head(hidden).float().flatten(0, 1), target.flatten())


class Balance:
    """Aux-loss-free balancing: nudge each expert's choice bias against its load (DeepSeek-V3)."""

    def __init__(self, model: MiMoV2Reference) -> None:
        self.routers = [m for m in model.modules() if isinstance(m, Router)]
        self.counts: dict[Router, torch.Tensor] = {}
        for router in self.routers:
            router.register_forward_hook(self._count)

    def _count(self, router: Router, _inputs: object, output: tuple) -> None:
        self.counts[router] = torch.bincount(
            output[1].flatten(), minlength=len(router.e_score_correction_bias)
        ).float()

    @torch.no_grad()
    def step(self) -> None:
        for router in self.routers:
            load = self.counts[router]
            router.e_score_correction_bias += BALANCE_RATE * (load.mean() - load).sign()

    def imbalance(self) -> float:
        """Busiest expert's share over the mean, averaged over layers (1 is even)."""
        return float(torch.stack([c.max() / c.mean() for c in self.counts.values()]).mean())


@torch.no_grad()
def evaluate(model: MiMoV2Reference, held: dict[str, torch.Tensor]) -> dict[str, float]:
    """Held-out losses by kind, and each MTP layer's top-1 hit rate on text."""
    out: dict[str, float] = {}
    for name, tokens in held.items():
        out[name] = float(losses(model, tokens, with_mtp=False)[0])
    tokens = held["text"]
    hidden = model.hidden(tokens)
    for k, state in enumerate(model.mtp_hidden(tokens, hidden)):
        guess = model.lm_head(state[:, :-1]).argmax(-1)
        out[f"mtp{k} hit"] = float((guess == tokens[:, k + 2 :]).float().mean())
    return out


def held_out(text: np.ndarray, tokenizer: Tokenizer, length: int) -> dict[str, torch.Tensor]:
    """Fixed held-out batches: text, conversations, and noise whose second half is its first."""
    source = BatchSource(tokenizer, text, seed=10_000)
    pieces = text[: 8 * length].reshape(8, length)
    talk: list[int] = []
    while len(talk) < 4 * length:
        talk += source.conversation(most=length // 16)
    noise = torch.randint(0, source.plain_ids, (8, length // 4), generator=_generator(1))
    return {
        "text": torch.from_numpy(pieces.astype(np.int64)),
        "conversation": torch.tensor(talk[: 4 * length]).view(4, length),
        "repeated noise": torch.cat([noise, noise], dim=1),  # half of it cannot be predicted
    }


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rate(progress: float) -> float:
    """Learning rate as a share of its peak: short warm-up, flat, then down to a twentieth."""
    if progress < 0.02:
        return progress / 0.02
    if progress < 0.5:
        return 1.0
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (progress - 0.5) / 0.5))


@dataclass
class Stage:
    """A run of steps with a learning-rate schedule and a mix of its own."""

    name: str
    short_steps: int
    """Steps of 8 x 256 tokens."""
    long_steps: int
    """Steps of 2 x 1,024 tokens, after the short ones."""
    mix: Mix
    peak_rate: float
    mtp_from: float
    """Share of the steps after which the MTP layers join in."""
    seed: int

    @property
    def steps(self) -> int:
        return self.short_steps + self.long_steps

    def batches(self, tokenizer: Tokenizer, text: np.ndarray) -> Iterator[torch.Tensor]:
        source = BatchSource(tokenizer, text, self.seed, self.mix)
        yield from itertools.islice(source.batches(8, 256), self.short_steps)
        yield from itertools.islice(source.batches(2, 1024), self.long_steps)


class Run:
    """A model in training, what it is measured on, and what was measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        documents = corpus.load(seed=args.seed)
        print(corpus.describe(documents), flush=True)
        held_count = max(1, len(documents) // 40)
        kept = documents[held_count:]
        if args.resume:
            self.tokenizer = Tokenizer.from_file(str(args.resume / "tokenizer.json"))
        else:
            self.tokenizer = train_tokenizer((d.text for d in kept), args.vocab)
        self.text = self._encode(kept)
        self.held = held_out(self._encode(documents[:held_count]), self.tokenizer, length=1024)
        self.config = trained_config(self.tokenizer)
        self.model = MiMoV2Reference(TextGeometry.from_config(self.config), attend_blocked)
        if args.resume:
            self.model.load_state_dict(read_split_state(args.resume)[1])
        else:
            lay_out(self.model, _generator(args.seed))
        count = sum(p.numel() for p in self.model.parameters())
        print(f"{count / 1e6:.2f} M parameters, {len(self.text) / 1e6:.2f} M tokens of text")
        self.balance, self.out = Balance(self.model), args.out
        self.history: list[dict] = []
        self.done = 0

    def _encode(self, part: list[corpus.Document]) -> np.ndarray:
        end = self.tokenizer.token_to_id("<|endoftext|>")
        encoded = self.tokenizer.encode_batch([d.text for d in part])
        return np.concatenate([np.array([*e.ids, end], dtype=np.int32) for e in encoded])

    def train(self, stage: Stage) -> None:
        """All steps of one stage, with progress."""
        stepper = torch.optim.AdamW(
            self.model.parameters(), lr=0, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )
        started = time.time()
        for step, tokens in enumerate(stage.batches(self.tokenizer, self.text)):
            for group in stepper.param_groups:
                group["lr"] = stage.peak_rate * rate((step + 1) / stage.steps)
            trunk, *mtp = losses(self.model, tokens, step >= stage.mtp_from * stage.steps)
            (trunk + MTP_WEIGHT * sum(mtp) / max(1, len(mtp))).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            stepper.step()
            stepper.zero_grad(set_to_none=True)
            self.balance.step()
            self.done += 1
            last = step + 1 == stage.steps
            if (step + 1) % 20 == 0:
                left = (time.time() - started) / (step + 1) * (stage.steps - step - 1)
                print(
                    f"{stage.name}: step {step + 1}/{stage.steps} loss {trunk.item():.3f} "
                    f"busiest expert {self.balance.imbalance():.2f}x, "
                    f"{left / 60:.1f} min left of this stage",
                    flush=True,
                )
            if (step + 1) % 200 == 0 or last:
                seen = evaluate(self.model, self.held)
                self.history.append({"step": self.done, "train": trunk.item(), **seen})
                shown = ", ".join(f"{k} {v:.3f}" for k, v in seen.items())
                print(f"held out: {shown}", flush=True)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    MoE.forward = MoE.forward_all_experts  # type: ignore[method-assign]
    started, started_cpu = time.time(), time.process_time()
    run = Run(args)
    stages = [
        Stage("mixed", args.short_steps, args.long_steps, MIX, PEAK_RATE, MTP_FROM, args.seed),
        Stage("talk", 0, args.talk_steps, TALK_MIX, PEAK_RATE / 2, 0.0, args.seed + 1),
    ]
    for stage in stages[1:] if args.resume else stages:
        run.train(stage)
    minutes = (time.time() - started) / 60
    core_minutes = (time.process_time() - started_cpu) / 60
    print(f"trained in {minutes:.1f} minutes, {core_minutes:.1f} core-minutes", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    log = {"minutes": minutes, "core_minutes": core_minutes, "history": run.history}
    (args.out / "loss.json").write_text(json.dumps(log, indent=1) + "\n")
    state = {name: w.detach() for name, w in run.model.state_dict().items()}
    write_checkpoint(args.out, run.config, state, run.tokenizer)
    add_towers(args.out)  # random ones: only the text is trained
    plot(args.out / "loss.png", run.history)


def plot(path: Path, history: list[dict]) -> None:
    """Held-out loss by kind over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("text", "conversation", "repeated noise"):
        axes.plot([h["step"] for h in history], [h[name] for h in history], label=name)
    axes.set_xlabel("step (2,048 tokens each)")
    axes.set_ylabel("held-out loss, nats per token")
    axes.set_title("Training the bundled tiny MiMo")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--short-steps", type=int, default=900, help="steps of 8 x 256 tokens")
    parser.add_argument("--long-steps", type=int, default=300, help="steps of 2 x 1,024 tokens")
    parser.add_argument("--talk-steps", type=int, default=350, help="long steps of conversations")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="do the last stage only, on this checkpoint"
    )
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
