"""Break one thing in host memory, or on the way from it. These run in the engine's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group

from tests.exactness.corruption import Inside
from tests.tiers.figures import director, drain
from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.tiers.mover import TierMover

SLOT, BLOCK = "slot", "block"


def mover() -> TierMover:
    """The worker's."""
    found = get_kv_transfer_group().mover
    assert isinstance(found, TierMover)
    return found


def slot_floats(inside: Inside, layer: int, offset: int) -> torch.Tensor:
    """Which float32 values of a layer's block belong to the token at `offset` in it: a mask."""
    region = mover().regions.layers[layer]
    attention = inside.layers[region.name]
    size = inside.groups[region.group].kv_cache_spec.block_size
    page = region.device.rows()[1]
    kept = page.clone()
    page.zero_()
    shape = (1, attention.num_kv_heads, attention.head_size)
    ones = torch.ones(shape)
    attention.impl.do_kv_cache_update(
        attention, ones, ones, attention.kv_cache, torch.tensor([size + offset])
    )
    mask = page.view(torch.float32) != 0
    page.copy_(kept)
    return mask


def host_block(llm: Any, request_hashes: Sequence[bytes], group: int, index: int) -> int:
    """Host block that holds block `index` of a prompt."""
    tiers = director(llm)
    manager = (tiers.manager.full, tiers.manager.window)[group]
    block = tiers.hosts[group].find(request_hashes[index] + manager.key_end)
    assert block is not None, "host memory has lost the block"
    return block.block_id


def second_turns(
    llm: Any,
    prompts: list[list[int]],
    written: int,
    what: tuple[str, int] | None,
    positions: list[int],
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Greedy outputs of prompts whose KV is in host memory only, each with one thing broken there.

    Args:
        what: SLOT or BLOCK, and the group; None leaves all as it is.
        positions: for each prompt the token whose slot, or block, is broken.

    Returns the outputs, and the tokens that were not computed.
    """
    from vllm import SamplingParams

    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    inside, tiers = Inside(llm), director(llm)
    hosts = mover().regions.hosts
    drain(llm)
    intact = [host.clone() for host in hosts]
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=written)
    build = tiers.build
    outputs, cached = [], []
    for number, (prompt, position) in enumerate(zip(prompts, positions, strict=True)):
        assert scheduler.reset_prefix_cache()
        engine.add_request(f"second-{number}", {"prompt_token_ids": prompt}, sampling)
        (request,) = scheduler.waiting
        if what is not None:
            how, group = what
            size = inside.groups[group].kv_cache_spec.block_size
            source = host_block(llm, request.block_hashes, group, position // size)
            if how == SLOT:
                noise(inside, group, source, position % size, seed=number)
            else:
                tiers.build = lambda output, g=group, s=source: swap(build(output), g, s)
        done = False
        while not done:
            for output in engine.step():
                done = output.finished
                tokens = tuple(output.outputs[0].token_ids)
                count = output.num_cached_tokens or 0
        drain(llm)
        outputs.append(tokens)
        cached.append(count)
        tiers.build = build
        for host, before in zip(hosts, intact, strict=True):
            host.copy_(before)
    return outputs, cached


def noise(inside: Inside, group: int, block: int, offset: int, seed: int) -> None:
    """Put noise of the cache's own size in one token's K and V, in all layers of a kind."""
    generator = torch.Generator().manual_seed(seed)
    for layer, region in enumerate(mover().regions.layers):
        if region.group == group:
            page = region.host.rows()[block].view(torch.float32)
            mask = slot_floats(inside, layer, offset)
            values = torch.randn(page.shape, generator=generator) * float(page.std())
            page[mask] = values[mask]


def swap(moves: Any, group: int, source: int) -> Any:
    """Load another block in place of `source`."""
    pairs = (moves.loads.full, moves.loads.window)[group]
    for index, (host, device) in enumerate(pairs):
        if host == source:
            pairs[index] = (host - 1 if host > 1 else host + 1, device)
    return moves


GROUPS = {"full": FULL_GROUP, "SWA": WINDOW_GROUP}
