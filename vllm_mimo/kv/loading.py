"""Puts blocks that lower tiers hold into the device's pools: which are taken, and which are new."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_mimo.kv.below import HostHit, Load

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.kv.manager import MimoKVCacheManager
    from vllm_mimo.kv.resume import Resume


@dataclass(slots=True)
class Placed:
    """A resume whose blocks are all in the device's pools, some of them still empty."""

    manager: MimoKVCacheManager
    full: list[KVCacheBlock]
    window: list[KVCacheBlock]
    """With null blocks before the tail."""
    full_loads: list[Load] = field(default_factory=list)
    window_loads: list[Load] = field(default_factory=list)

    def publish(self, request: Request) -> None:
        """Let others find the blocks that are loaded in this step: their step comes no earlier."""
        for pool, blocks in (
            (self.manager.full, self.full),
            (self.manager.window, self.window),
        ):
            mask = [block.block_hash is None and not block.is_null for block in blocks]
            if any(mask):
                first = mask.index(True)
                pool.block_pool.cache_full_blocks(
                    request=request,
                    blocks=blocks,
                    num_cached_blocks=first,
                    num_full_blocks=len(blocks),
                    block_size=pool.block_size,
                    kv_cache_group_id=pool.kv_cache_group_id,
                    block_mask=mask[first:],
                )


def room_for_loads(
    manager: MimoKVCacheManager, request: Request, resume: Resume, watermark: int
) -> bool:
    """Whether both pools surely have the blocks of the whole request.

    More than vLLM asks for, but never more than an idle engine has: blocks must not be taken from
    the pools, and cached ones evicted for it, to find then that the request does not fit.
    """
    full, window = manager.full, manager.window
    tokens = min(request.num_tokens + 1, manager.max_model_len)
    held = sum(type(b) is not HostHit and b.ref_cnt > 0 for b in resume.full)
    needed = -(-tokens // full.block_size) - held
    if needed + watermark > full.block_pool.get_num_free_blocks():
        return False
    size = window.block_size
    needed = len(resume.tail) + -(-(tokens - resume.start) // size)
    most = window.max_admission_blocks_per_request
    if most is not None:
        needed = min(needed, most)
    needed -= sum(type(b) is not HostHit and b.ref_cnt > 0 for b in resume.tail)
    return needed + window.headroom <= window.block_pool.get_num_free_blocks()


@contextmanager
def place_loads(manager: MimoKVCacheManager, resume: Resume) -> Iterator[Placed]:
    """Take the device's blocks of a resume and a new one for each of the others.

    They are held while the context lasts: whoever admits the request takes them for it. What nobody
    has taken by then goes back.
    """
    pools = (manager.full.block_pool, manager.window.block_pool)
    wanted: tuple[list[Any], list[Any]] = (resume.full, resume.tail)
    for pool, blocks in zip(pools, wanted, strict=True):
        pool.touch([b for b in blocks if type(b) is not HostHit])
    loads: tuple[list[Load], list[Load]] = ([], [])
    made: tuple[list[KVCacheBlock], list[KVCacheBlock]] = ([], [])
    for pool, blocks, own_loads, own in zip(pools, wanted, loads, made, strict=True):
        missing = [b for b in blocks if type(b) is HostHit]
        new = iter(pool.get_new_blocks(len(missing)))
        for block in blocks:
            if type(block) is HostHit:
                target = next(new)
                own_loads.append(Load(block.block, target))
                own.append(target)
            else:
                own.append(block)
    skipped = resume.start // manager.window.block_size - len(resume.tail)
    window = [manager.window._null_block] * skipped + made[1]
    try:
        yield Placed(manager, made[0], window, *loads)
    finally:
        for pool, own in zip(pools, made, strict=True):
            untaken = []
            for block in reversed(own):
                if block.ref_cnt > 1:
                    block.ref_cnt -= 1
                else:
                    untaken.append(block)
            pool.free_blocks(untaken)
