"""What a look-up must find and an admission must respect, by brute force from the pools' maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_mimo.kv.groups import FULL_GROUP, WINDOW_GROUP
from vllm_mimo.kv.sizing import running_blocks

from .worker import require

if TYPE_CHECKING:
    from .engine import Engine


def cached(engine: Engine, request: Request, group: int, index: int) -> bool:
    """Whether a pool's map has the block of a request's prefix."""
    manager = (engine.manager.full, engine.manager.window)[group]
    ratio = manager.block_size // engine.geometry.window_block
    place = (index + 1) * ratio - 1
    if place >= len(request.block_hashes):
        return False
    return manager.block_pool.get_cached_block(request.block_hashes[place], [group]) is not None


@dataclass
class Hit:
    """The best resume, and the room for it before it is admitted."""

    start: int
    full_tokens: int
    replay: int
    """Where a replay starts."""
    tail: tuple[int, int]
    """SWA blocks of the window before `start`."""
    free: tuple[int, int]
    sizes: tuple[int, int]
    is_replay: bool = False
    idle: tuple[int, int] = (0, 0)
    """Blocks of the hit that no request holds: taking them leaves fewer free ones."""

    def check(
        self,
        engine: Engine,
        request: Request,
        blocks: Sequence[Sequence[KVCacheBlock]],
        start: int,
    ) -> None:
        """Compare with what the manager found, and take note of its blocks."""
        manager = engine.manager
        full, window = (list(blocks[group]) for group in (FULL_GROUP, WINDOW_GROUP))
        require(start == self.start, request.request_id, "starts at", start, "not at", self)
        require(manager.write_start(request.request_id) == self.full_tokens, "full hit", self)
        require(len(full) * self.sizes[0] == self.full_tokens, "full blocks", len(full), self)
        require(len(window) * self.sizes[1] == start or not any(map(len, blocks)), "SWA blocks")
        held = [index for index, block in enumerate(window) if not block.is_null]
        if start and not held:
            self.is_replay = True
            require(start == self.replay, "starts without a tail", self)
        else:
            require(held == list(range(*self.tail)), "tail", held, self)
        ids = np.array(engine.ids[request.request_id], np.int64)
        for group, found in enumerate((full, window)):
            size = self.sizes[group]
            for index, block in enumerate(found):
                if block.is_null:
                    continue
                key = block.block_hash
                require(key is not None, "a hit on an evicted block", group, block.block_id)
                known = engine.hashed[bytes(key)[:-4]]
                end = (index + 1) * size
                require(len(known) == end and known[-1] == ids[end - 1], "a foreign block")
        self.idle = (sum(not b.ref_cnt for b in full), sum(not window[i].ref_cnt for i in held))

    def fits(self, request: Request, count: int) -> bool:
        """Whether the free blocks hold the sequence's full KV and its first chunk's SWA KV."""
        full = -(-request.num_tokens // self.sizes[0]) - self.full_tokens // self.sizes[0]
        window = -(-(self.start + count) // self.sizes[1]) - self.start // self.sizes[1]
        return full + self.idle[0] <= self.free[0] and window + self.idle[1] <= self.free[1]


def expected_hit(engine: Engine, request: Request) -> Hit:
    """The resume that recomputes least: from the last usable tail, or by a replay."""
    geometry = engine.geometry
    block, size = geometry.block, geometry.window_block
    most = request.num_tokens - 1
    full = 0
    while (full + 1) * block <= most and cached(engine, request, FULL_GROUP, full):
        full += 1
    hit = full * block
    tails = [0]
    for end in range(size, hit + 1, size):
        first = max(0, end - geometry.window + 1) // size
        if all(cached(engine, request, WINDOW_GROUP, i) for i in range(first, end // size)):
            tails.append(end)
    # A replay makes whole blocks of a tail exact.
    bound = geometry.bound + -(geometry.window - 1) % size
    replay = max(0, hit - bound) // size * size if geometry.replay else 0
    start = max(tails[-1], replay)
    if not geometry.replay:
        hit = -(-start // block) * block
    tail = (max(0, start - geometry.window + 1) // size, start // size)
    pools = (engine.manager.full.block_pool, engine.manager.window.block_pool)
    free = tuple(pool.get_num_free_blocks() for pool in pools)
    return Hit(start, hit, replay, tail, free, (block, size))  # type: ignore[arg-type]


def check_refusal(engine: Engine, request: Request, hit: Hit) -> None:
    """A request is refused only where it might not fit: none starves beside free blocks."""
    geometry = engine.geometry
    marks = [
        int(geometry.watermark * blocks) if engine.running else 0
        for blocks in (geometry.full_blocks, geometry.window_blocks)
    ]
    full = -(-request.num_tokens // geometry.block) - hit.full_tokens // geometry.block
    most = running_blocks(geometry.window, geometry.window_block, geometry.in_flight)
    window = min(-(-request.num_tokens // geometry.window_block), most)
    enough = (
        full + hit.idle[0] + marks[0] <= hit.free[0]
        and window + hit.idle[1] + marks[1] <= hit.free[1]
    )
    require(not enough, request.request_id, "is refused beside enough free blocks", hit)
