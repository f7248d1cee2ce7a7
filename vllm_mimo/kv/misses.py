"""Why prompt tokens were computed although caching is on: counted in tokens, by reason."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_mimo.kv.pools import FullManager
    from vllm_mimo.kv.resume import Resume

logger = logging.getLogger("vllm.vllm_mimo")

NO_PREFIX = "no_prefix"
"""Never cached, as far as the cache remembers."""
EVICTED = "evicted_full"
"""Cached before; the full-attention block after the hit was evicted."""
NO_TAIL = "no_tail"
"""Full KV is cached, but no SWA tail at its end: recomputed from the last tail, or replayed."""
SALT = "salt"
"""The request has a cache salt under which nothing is cached yet."""
CAPACITY = "capacity"
"""Times that a waiting request was not admitted for want of blocks (not tokens)."""

REASONS = (NO_PREFIX, EVICTED, NO_TAIL, SALT, CAPACITY)


class MissCounter:
    """Counts since the start.

    Args:
        remembered: evicted block hashes to remember.
    """

    def __init__(self, remembered: int) -> None:
        self.remembered = max(1024, 4 * remembered)
        self.gone: OrderedDict[bytes, None] = OrderedDict()  # a dict's front is slow to pop
        self.counts = dict.fromkeys(REASONS, 0)
        self.hit_tokens = 0
        self.prompt_tokens = 0
        self.replays = 0

    def evicted(self, key: bytes) -> None:
        """Remember the hash of a full-attention block that left the cache."""
        self.gone[key] = None
        if len(self.gone) > self.remembered:
            self.gone.popitem(last=False)

    def refused(self) -> None:
        """A waiting request found too few free blocks."""
        self.counts[CAPACITY] += 1

    def admitted(self, request: Request, resume: Resume, full: FullManager) -> None:
        """Count a request's prompt, once it is admitted."""
        tokens = request.num_tokens
        hashes = full.block_hashes(request.block_hashes)
        index = len(resume.full)
        missed = tokens - resume.full_tokens
        reason = NO_PREFIX
        if index < len(hashes) and hashes[index] in self.gone:
            reason = EVICTED
        elif request.cache_salt and index == 0:
            reason = SALT
        self.counts[reason] += missed
        self.counts[NO_TAIL] += resume.recomputed
        self.hit_tokens += resume.start
        self.prompt_tokens += tokens
        self.replays += resume.is_replay
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "%s: %d of %d tokens cached; %d not (%s), %d of them again for want of a tail%s",
                request.request_id,
                resume.start,
                tokens,
                missed + resume.recomputed,
                reason,
                resume.recomputed,
                " (replay)" if resume.is_replay else "",
            )
