"""Break one thing in a running engine's KV cache. These functions run in the engine's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FULL, SWA = "full", "SWA"


class Inside:
    """The parts of an in-process engine that a test reaches into."""

    def __init__(self, llm: Any) -> None:
        core = llm.llm_engine.engine_core.engine_core
        self.manager = core.scheduler.kv_cache_manager
        self.groups = core.scheduler.kv_cache_config.kv_cache_groups
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.layers = self.runner.compilation_config.static_forward_context

    def groups_of(self, kind: str) -> list[int]:
        """Numbers of the KV cache groups of one kind of layer."""
        from vllm.v1.kv_cache_interface import SlidingWindowSpec

        windows = [isinstance(g.kv_cache_spec, SlidingWindowSpec) for g in self.groups]
        return [i for i, is_window in enumerate(windows) if is_window == (kind == SWA)]

    def overwrite_slot(self, request: str, kind: str, position: int, seed: int) -> None:
        """Put noise of the cache's own size into one token's K and V, in all layers of a kind.

        This is what a token of some other sequence would look like there.
        """
        generator = torch.Generator().manual_seed(seed)
        blocks = self.manager.get_block_ids(request)
        for group in self.groups_of(kind):
            size = self.groups[group].kv_cache_spec.block_size
            slot = blocks[group][position // size] * size + position % size
            for name in self.groups[group].layer_names:
                layer = self.layers[name]
                spread = float(layer.kv_cache[blocks[group][position // size]].std())
                shape = (1, layer.num_kv_heads, layer.head_size)
                key, value = (torch.randn(shape, generator=generator) * spread for _ in "kv")
                layer.impl.do_kv_cache_update(
                    layer, key, value, layer.kv_cache, torch.tensor([slot])
                )

    def swap_block(self, request: str, kind: str, position: int) -> None:
        """Let the worker's block table name another block for the one that holds `position`."""
        row = self.runner.input_batch.req_id_to_index[request]
        for group in self.groups_of(kind):
            size = self.groups[group].kv_cache_spec.block_size
            table = self.runner.input_batch.block_table[group].block_table
            index = position // size
            own = int(table.np[row, index])
            wrong = own - 1 if own > 1 else own + 1
            table.np[row, index] = wrong
            table.gpu[row, index] = wrong


Break = Callable[[Inside, str, int], None]
"""(engine's inside, request id, tokens in its cache) -> nothing: breaks something."""


def generate_broken(
    llm: Any, prompts: list[list[int]], max_tokens: int, after: int, breaks: list[Break | None]
) -> list[tuple[int, ...]]:
    """Greedy outputs of one prompt after another, each broken once `after` tokens are out."""
    from vllm import SamplingParams

    inside, outputs = Inside(llm), []
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    for i, (prompt, break_) in enumerate(zip(prompts, breaks, strict=True)):
        engine = llm.llm_engine
        engine.add_request(f"broken-{i}", {"prompt_token_ids": prompt}, sampling)
        done, tokens = False, ()
        while not done:
            for output in engine.step():
                tokens = tuple(output.outputs[0].token_ids)
                done = output.finished
            if break_ is not None and len(tokens) >= after and not done:
                (request,) = inside.runner.requests
                break_(inside, request, len(prompt) + len(tokens) - 1)
                break_ = None
        outputs.append(tokens)
    return outputs
