"""Train the tiny MiMo that this project ships, on text that ships with Python and Debian.

    python examples/train_tiny.py --out DIR [--short-steps 900 --long-steps 300 --threads 2]

Twelve layers in MiMo's hybrid pattern, sinks, experts and three MTP layers, trained together:
about 40 core-minutes. Writes a hub-style checkpoint, loss.json and loss.png to DIR.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.reference.attention import attend_blocked
from vllm_mimo.reference.text import MiMoV2Reference, MoE, Router
from vllm_mimo.tiny import corpus
from vllm_mimo.tiny.batches import BatchSource
from vllm_mimo.tiny.initial import lay_out
from vllm_mimo.tiny.shapes import trained_config
from vllm_mimo.tiny.tokenizer import train_tokenizer

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


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    documents = corpus.load(seed=args.seed)
    print(corpus.describe(documents), flush=True)
    held_count = max(1, len(documents) // 40)
    tokenizer = train_tokenizer((d.text for d in documents[held_count:]), args.vocab)
    end = tokenizer.token_to_id("<|endoftext|>")

    def encode(part: list[corpus.Document]) -> np.ndarray:
        encoded = tokenizer.encode_batch([d.text for d in part])
        return np.concatenate([np.array([*e.ids, end], dtype=np.int32) for e in encoded])

    text = encode(documents[held_count:])
    held = held_out(encode(documents[:held_count]), tokenizer, length=1024)
    config = trained_config(tokenizer)
    model = MiMoV2Reference(TextGeometry.from_config(config), attend_blocked)
    MoE.forward = MoE.forward_all_experts  # type: ignore[method-assign]
    lay_out(model, _generator(args.seed))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f} M parameters, {len(text) / 1e6:.2f} M tokens of text", flush=True)

    balance = Balance(model)
    stepper = torch.optim.AdamW(
        model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    source = BatchSource(tokenizer, text, seed=args.seed)
    short, long = source.batches(8, 256), source.batches(2, 1024)
    total = args.short_steps + args.long_steps
    args.out.mkdir(parents=True, exist_ok=True)
    history: list[dict] = []
    started, started_cpu = time.time(), time.process_time()
    for step in range(total):
        tokens = next(short if step < args.short_steps else long)
        for group in stepper.param_groups:
            group["lr"] = PEAK_RATE * rate((step + 1) / total)
        trunk, *mtp = losses(model, tokens, with_mtp=step >= MTP_FROM * total)
        (trunk + MTP_WEIGHT * sum(mtp) / max(1, len(mtp))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        stepper.zero_grad(set_to_none=True)
        balance.step()
        if (step + 1) % 20 == 0:
            left = (time.time() - started) / (step + 1) * (total - step - 1)
            print(
                f"step {step + 1}/{total} loss {trunk.item():.3f} "
                f"busiest expert {balance.imbalance():.2f}x, {left / 60:.1f} min left",
                flush=True,
            )
        if (step + 1) % 200 == 0 or step + 1 == total:
            seen = evaluate(model, held)
            history.append({"step": step + 1, "train": trunk.item(), **seen})
            print("held out: " + ", ".join(f"{k} {v:.3f}" for k, v in seen.items()), flush=True)
            save_file(model.state_dict(), args.out / "training_state.safetensors")
    minutes = (time.time() - started) / 60
    core_minutes = (time.process_time() - started_cpu) / 60
    print(f"trained in {minutes:.1f} minutes, {core_minutes:.1f} core-minutes", flush=True)
    finish(args.out, model, config, tokenizer, history, minutes, core_minutes)


def finish(
    out: Path,
    model: MiMoV2Reference,
    config: dict,
    tokenizer: Tokenizer,
    history: list[dict],
    minutes: float,
    core_minutes: float,
) -> None:
    """Write the checkpoint in V2.5's layout, the losses and their plot."""
    from vllm_mimo.tiny.write import write_checkpoint

    log = {"minutes": minutes, "core_minutes": core_minutes, "history": history}
    (out / "loss.json").write_text(json.dumps(log, indent=1) + "\n")
    state = {name: w.detach() for name, w in model.state_dict().items()}
    write_checkpoint(out, config, state, tokenizer)
    (out / "training_state.safetensors").unlink(missing_ok=True)
    plot(out / "loss.png", history)


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
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
