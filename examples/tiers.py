"""Keep KV in host memory and on disk: the same prompts, computed and found in each tier.

    python examples/tiers.py                      # the tiny model of this package, on a CPU
    python examples/tiers.py --model DIR --host-gib 200 --l3 /nvme/kv --plot tiers.png

Prints, for each tier, the prompt tokens that were found and the time to the first token, and checks
that all answers are the same. With --plot (needs matplotlib), draws the times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_mimo.tiny.checkpoints import trained_folder

Round = tuple[list[float], list[int], list[tuple[int, ...]]]
"""Of each prompt: milliseconds to the first token, tokens found, and the tokens answered."""


def prompts(count: int, length: int) -> list[list[int]]:
    """Token ids of prompts that have nothing in common."""
    rng = random.Random(1)
    return [rng.choices(range(1000), k=length) for _ in range(count)]


def empty_device(llm: Any) -> None:
    """Drop what the device caches; lower tiers keep theirs."""
    end = time.monotonic() + 60
    while not llm.reset_prefix_cache():  # blocks are still being copied out
        if time.monotonic() > end:
            raise TimeoutError("the device's cache is in use")
        time.sleep(0.1)


def ask(llm: Any, args: argparse.Namespace) -> Round:
    """One prompt after the other."""
    from vllm import SamplingParams

    first = SamplingParams(temperature=0, max_tokens=1)
    whole = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    times, found, answers = [], [], []
    for prompt in prompts(args.prompts, args.length):
        begin = time.perf_counter()
        output = llm.generate({"prompt_token_ids": prompt}, first, use_tqdm=False)[0]
        times.append(1e3 * (time.perf_counter() - begin))
        found.append(output.num_cached_tokens or 0)
        output = llm.generate({"prompt_token_ids": prompt}, whole, use_tqdm=False)[0]
        answers.append(tuple(output.outputs[0].token_ids))
    return times, found, answers


def serve(args: argparse.Namespace, rounds: tuple[str, ...], results: Any) -> None:
    """An engine in this process, and one round for each tier named."""
    # vLLM's CPU backend would take most of the machine's memory for KV. GPUs do not look at this.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    tiers = {"host_gib": args.host_gib, "l3": {"path": args.l3, "gib": args.l3_gib}}
    llm = LLM(model=args.model, additional_config={"mimo": tiers})
    other = [7] * args.length  # warms up
    for _ in range(2):
        llm.generate({"prompt_token_ids": other}, SamplingParams(max_tokens=1), use_tqdm=False)
    for name in rounds:
        if name != "device":
            empty_device(llm)
        results.put((name, ask(llm, args)))
    empty_device(llm)  # everything has been copied out then


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(trained_folder()))
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--length", type=int, default=3001, help="tokens of a prompt")
    parser.add_argument("--host-gib", type=float, default=0.5)
    parser.add_argument("--l3", help="folder on a local disk; default: a temporary one")
    parser.add_argument("--l3-gib", type=float, default=1.0)
    parser.add_argument("--plot", type=Path, help="PNG of the times")
    args = parser.parse_args()
    found: dict[str, Round] = {}
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        args.l3 = args.l3 or str(Path(folder) / "kv")
        for rounds in (("nothing", "device", "host memory"), ("disk, after a restart",)):
            process = context.Process(target=serve, args=(args, rounds, results))
            process.start()
            while process.is_alive() or not results.empty():
                if not results.empty():
                    name, found[name] = results.get()
                time.sleep(0.05)
            if process.exitcode:
                raise SystemExit("the engine failed; its error is above")
    answers = found["nothing"][2]
    print(f"{'found in':24}{'tokens found':>14}{'first token, ms':>18}")
    for name, (times, cached, written) in found.items():
        share = sum(cached) / (args.prompts * args.length)
        print(f"{name:24}{share:>13.1%} {statistics.median(times):>17.1f}")
        if written != answers:
            raise SystemExit(f"{name}: other answers than without a cache")
    print("ok: the same answers from every tier")
    if args.plot:
        draw(found, args.plot)


def draw(found: dict[str, Round], file: Path) -> None:
    """Time to the first token by tier."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 3), layout="constrained")
    axis.barh(list(found), [statistics.median(times) for times, _, _ in found.values()])
    axis.invert_yaxis()
    axis.set_xlabel("time to the first token, ms (median)")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
