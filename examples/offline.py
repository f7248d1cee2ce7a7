"""Use a MiMo-V2 model from Python, without a server.

    python examples/offline.py                # the tiny trained model of this package, on a CPU
    python examples/offline.py --model DIR    # any other MiMo-V2 checkpoint

The plugin needs no import and no option: vLLM finds it by itself.
"""

from __future__ import annotations

import argparse
import os
import random

from vllm_mimo.tiny import tasks
from vllm_mimo.tiny.checkpoints import trained_folder

NOTES = 100
"""Notes in the system prompt: about 1,000 tokens of the tiny model, four blocks of its cache."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(trained_folder()))
    args = parser.parse_args()
    # vLLM's CPU backend would take most of the machine's memory for KV. GPUs do not look at this.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(model=args.model)
    greedy = SamplingParams(temperature=0, max_tokens=64)

    places = tasks.notes(random.Random(1), NOTES)
    system = {"role": "system", "content": tasks.notes_text(places)}
    for word in random.Random(2).sample(list(places), 3):
        question = {"role": "user", "content": tasks.recall_question(word)}
        [output] = llm.chat([system, question], greedy, use_tqdm=False)
        report(f"chat: {question['content']} (the notes say {places[word]})", output)

    prompt = "The Python standard library is a collection of modules that"
    [output] = llm.generate([prompt], greedy, use_tqdm=False)
    report(f"generate: {prompt}", output)


def report(title: str, output) -> None:
    """Print one vllm.RequestOutput and how much of its prompt was in the prefix cache."""
    print(f"\n{title}\n  {output.outputs[0].text.strip()}")
    tokens = len(output.prompt_token_ids)
    print(f"  prompt of {tokens} tokens, {output.num_cached_tokens} from the prefix cache")


if __name__ == "__main__":  # vLLM starts processes that import this file again
    main()
