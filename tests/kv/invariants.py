"""What holds after every step: owners, leaks, cached KV and the size of running windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from vllm_mimo.kv.groups import WINDOW_GROUP
from vllm_mimo.kv.sizing import running_blocks

from .worker import require

if TYPE_CHECKING:
    from .engine import Engine


def check(engine: Engine) -> None:
    """All of them."""
    check_owners(engine)
    check_cached(engine)
    if not engine.requests:
        check_nothing_left(engine)


def pools(engine: Engine):
    return engine.manager.full.block_pool, engine.manager.window.block_pool


def check_owners(engine: Engine) -> None:
    """Every reference is a request's, and only blocks with the same content have several."""
    owners = (Counter(), Counter())  # type: ignore[var-annotated]
    content: list[dict[int, int]] = [{}, {}]
    for request in engine.running:
        ids = engine.ids[request.request_id]
        blocks = engine.manager.get_blocks(request.request_id).blocks
        for group, own in enumerate(blocks):
            size = engine.worker.sizes[group]
            table = engine.worker.tables[request.request_id][group]
            require(len(table) == len(own), "the worker's block table is behind")
            for index, block in enumerate(own):
                if block.is_null:
                    continue
                require(block.pool is pools(engine)[group], "a block of the other pool")
                require(table[index] == block.block_id, "the worker has another block")
                owners[group][block.block_id] += 1
                end = (index + 1) * size
                last = ids[end - 1] if end <= len(ids) else -hash((request.request_id, index))
                known = content[group].setdefault(block.block_id, last)
                require(known == last, "two requests own a block", group, block.block_id)
    for _, blocks in engine.deferred:
        for block in blocks:
            if not block.is_null:
                owners[pools(engine).index(block.pool)][block.block_id] += 1
    for group, held in enumerate(engine.held()):
        owners[group].update(block.block_id for block in held)
    for group, pool in enumerate(pools(engine)):
        for block in pool.blocks:
            if not block.is_null:
                require(
                    block.ref_cnt == owners[group][block.block_id],
                    f"block {block.block_id} of pool {group} has {block.ref_cnt} references,",
                    f"{owners[group][block.block_id]} owners",
                )
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        require(used == len(owners[group]), "free blocks", group, used, len(owners[group]))


def check_cached(engine: Engine) -> None:
    """Every block in a pool's map holds exact KV of what its hash stands for."""
    for group, pool in enumerate(pools(engine)):
        size = engine.worker.sizes[group]
        known = 0
        for block in pool.blocks:
            extra = pool.cached_block_hashes_by_block.get(block.block_id, ())
            keys = [*extra] if block.block_hash is None else [block.block_hash, *extra]
            for key in keys:
                known += 1
                mapped = pool.cached_block_hash_to_block.contain(key, block.block_id)
                require(mapped, "a hash that the map does not know")
                require(int.from_bytes(key[-4:], "big") == group, "a hash of the other group")
                ids = engine.hashed[bytes(key)[:-4]]
                own = ids[(len(ids) - 1) // size * size :]
                if not engine.worker.holds(group, block.block_id, own):
                    first = block.block_id * size
                    last = first + len(own)
                    require(
                        False,
                        f"cached block {block.block_id} of pool {group} for tokens",
                        f"{len(ids) - len(own)} to {len(ids)} is not exact:",
                        engine.worker.exact[group][first:last],
                        (engine.worker.content[group][first:last] == own).astype(np.int8),
                    )
        entries = pool.cached_block_hash_to_block._cache.values()
        mapped = sum(len(entry) if type(entry) is dict else 1 for entry in entries)
        require(mapped == known, "the map has blocks without their hash", mapped, known)


def check_windows(engine: Engine, scheduled: Iterable[str]) -> None:
    """A request that was just scheduled holds the SWA blocks that are planned for its tokens in
    flight, at most."""
    geometry = engine.geometry
    for name in scheduled:
        held = sum(not b.is_null for b in engine.manager.get_blocks(name).blocks[WINDOW_GROUP])
        planned = running_blocks(
            geometry.window, geometry.window_block, engine.requests[name].num_in_flight_tokens
        )
        require(held <= planned, name, "holds", held, "SWA blocks of", planned, "planned")


def check_released(engine: Engine) -> None:
    """After a release, running requests hold what their window needs, and one block at most."""
    size, window = engine.geometry.window_block, engine.geometry.window
    for request in engine.running:
        engine.manager.release_outside_window(request)
        done = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        blocks = engine.manager.get_blocks(request.request_id).blocks[WINDOW_GROUP]
        held = [index for index, block in enumerate(blocks) if not block.is_null]
        first = max(0, done - window + 1) // size
        require(not held or held[0] >= first - 1, request.request_id, "keeps", held, "of", first)
        ends = -(-request.num_computed_tokens // size)
        start = max(first, engine.hits[request.request_id].start // size)
        missing = set(range(start, ends)) - set(held)
        require(not missing, request.request_id, "lost blocks of its window", missing)


def check_nothing_left(engine: Engine) -> None:
    """Without requests no block is held and nothing is remembered about any."""
    manager = engine.manager
    if not engine.deferred:
        for pool, held in zip(pools(engine), engine.held(), strict=True):
            free = pool.get_num_free_blocks() + len(held)
            require(free == pool.num_gpu_blocks - 1, "a leak")
    left = [manager.resumes, manager.admitted, manager.window.plans]
    for single in (manager.full, manager.window):
        left += [single.req_to_blocks, single.num_cached_block]
    require(not any(left), "what ended is remembered:", [len(kept) for kept in left])
