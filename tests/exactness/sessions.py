"""A seeded workload of multi-turn sessions, and how an engine is driven through it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: what the user adds, and how many tokens are written."""

    session: int
    added: tuple[int, ...]
    written: int
    aborted: bool
    """Abort it once it has written a few tokens, or while it is still in its prefill."""


def workload(
    sessions: int, turns: int, seed: int, longest: int, long_share: float = 0.0
) -> list[list[Turn]]:
    """Sessions of `turns` turns whose prompts stay below `longest` tokens.

    A share of them starts with 1,300 to 2,200 tokens: longer than a replay of the tiny model.
    Three system prompts are shared; some sessions copy another's first turn, so that prefixes part
    at places that nobody foresees.
    """
    rng = random.Random(seed)
    systems = [rng.choices(range(2000), k=rng.randint(150, 420)) for _ in range(3)]
    made: list[list[Turn]] = []
    for number in range(sessions):
        first = [*rng.choice(systems), *rng.choices(range(2000), k=rng.randint(20, 300))]
        if made and rng.random() < 0.3:
            copied = rng.choice(made)[0].added
            keep = rng.randint(len(copied) // 3, len(copied))
            first = [*copied[:keep], *rng.choices(range(2000), k=rng.randint(5, 80))]
        if rng.random() < long_share:
            first = [*first, *rng.choices(range(2000), k=rng.randint(1300, 2200))]
        first = first[: longest - 200]
        session, length = [], 0
        for turn in range(turns):
            added = first if turn == 0 else rng.choices(range(2000), k=rng.randint(5, 220))
            written = rng.randint(90, 200) if rng.random() < 0.15 else rng.randint(4, 40)
            if length + len(added) + written > longest:
                break
            length += len(added) + written
            session.append(Turn(number, tuple(added), written, rng.random() < 0.08))
        made.append(session)
    return made


@dataclass
class Played:
    """What an engine did with a workload."""

    prompts: list[list[int]]
    outputs: list[tuple[int, ...]]
    cached: list[int]
    figures: dict[str, int]


def play(
    llm: Any, sessions: list[list[Turn]], seed: int, at_once: int, leave: float = 0.02
) -> Played:
    """Play all sessions, several at once; a next turn is added some time after the last one.

    An aborted turn ends its session; `leave` is the chance of an abort in a step. Runs in the
    engine's process.
    """
    from vllm import SamplingParams

    engine = llm.llm_engine
    rng = random.Random(seed)
    waiting = [(list(session), []) for session in sessions]
    open_turns: dict[str, tuple[Turn, list[int], list[Turn]]] = {}
    played = Played([], [], [], {})
    aborted = mid_prefill = 0

    def add(rest: list[Turn], history: list[int]) -> None:
        turn = rest.pop(0)
        prompt = [*history, *turn.added]
        name = f"s{turn.session}-{len(rest)}"
        sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=turn.written)
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        open_turns[name] = (turn, prompt, rest)

    scheduler = engine.engine_core.engine_core.scheduler
    while waiting or open_turns:
        while waiting and len(open_turns) < at_once:
            add(*waiting.pop(0))
        for output in engine.step():
            if output.request_id not in open_turns:
                continue
            turn, prompt, rest = open_turns[output.request_id]
            tokens = tuple(output.outputs[0].token_ids)
            if output.finished:
                del open_turns[output.request_id]
                played.prompts.append(prompt)
                played.outputs.append(tokens)
                played.cached.append(output.num_cached_tokens or 0)
                if rest:  # the user thinks while others go on
                    waiting.insert(rng.randint(0, 6), (rest, [*prompt, *tokens]))
            elif turn.aborted and len(tokens) >= turn.written // 2:
                engine.abort_request([output.request_id])
                del open_turns[output.request_id]
                aborted += 1
        if rng.random() < leave and open_turns:  # a client leaves at any moment
            prefills = [n for n in open_turns if _in_prefill(scheduler, n)]
            name = rng.choice(prefills or list(open_turns))
            mid_prefill += bool(prefills)
            engine.abort_request([name])
            del open_turns[name]
            aborted += 1
    played.figures = {"aborted": aborted, "aborted_mid_prefill": mid_prefill, **figures(llm)}
    return played


def _in_prefill(scheduler: Any, name: str) -> bool:
    """Whether a request has computed a part of its prompt."""
    found = [r for key, r in scheduler.requests.items() if key.startswith(f"{name}-")]
    return any(r.is_prefill_chunk and r.num_computed_tokens for r in found)


def figures(llm: Any) -> dict[str, int]:
    """Counters of the engine's KV cache."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    manager = scheduler.kv_cache_manager
    found = {
        f"{m.name}": int(m.value)
        for m in llm.get_metrics()
        if m.name in ("vllm:num_preemptions", "vllm:prefix_cache_hits")
    }
    if hasattr(manager, "misses"):
        full, window = manager.full.block_pool, manager.window.block_pool
        found |= {
            "full_evicted": full.num_evicted,
            "swa_evicted": window.num_evicted,
            "replays": manager.misses.replays,
            "hit_tokens": manager.misses.hit_tokens,
            "held_full": full.num_gpu_blocks - 1 - full.get_num_free_blocks(),
            "held_swa": window.num_gpu_blocks - 1 - window.get_num_free_blocks(),
            **manager.misses.counts,
        }
    return found
