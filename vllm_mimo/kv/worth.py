"""Says what blocks are worth when they are freed: labels for the eviction queues of both pools.

The full pool's blocks belong to a turn, whose return is predicted from how it ended. A tail is
worth the tokens that a resume without it would replay, for each of its blocks; the tail that a turn
resumed from is superseded once the turn has moved on, unless other chains branch off there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllm_mimo.kv.eviction import NO_LABEL, SUPERSEDED, EvictionQueue, Label
from vllm_mimo.kv.turns import Ending, Turn, Turns

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.kv.manager import MimoKVCacheManager

PASSED_TAIL = 0.25
"""Worth of a tail that its own turn has moved beyond, against the one at the turn's end: it serves
a prompt that is sent again or edited, not the next turn."""


class CacheWorth:
    """The eviction order of one manager's pools.

    Args:
        manager: whose pools get the queues.
        policy: a name in `vllm_mimo.kv.eviction.POLICIES`.
        clock: seconds.
    """

    def __init__(
        self, manager: MimoKVCacheManager, policy: str, clock: Callable[[], float]
    ) -> None:
        self.manager = manager
        self.policy = policy
        self.clock = clock
        full, window = manager.full.block_pool, manager.window.block_pool
        self.turns = Turns(full.hash_block_size, clock)

        def make(blocks: list[KVCacheBlock]) -> EvictionQueue:
            return EvictionQueue(blocks, self.turns, policy, clock)

        self.queues = (full.use_order(make), window.use_order(make))
        manager.window.queue = self.queues[1]
        manager.window.labels = self._leaving
        self.turn_of: dict[str, Turn] = {}
        self.endings: dict[str, Ending] = {}

    def admitted(self, request: Request) -> None:
        """A request got its blocks, perhaps again after a preemption."""
        own = request.skip_reading_prefix_cache  # a shadow check, e.g., is nobody's next turn
        if self.manager.enable_caching and not own and request.request_id not in self.turn_of:
            self.turn_of[request.request_id] = self.turns.begin(request.block_hashes)

    def note_ending(self, request_id: str, ending: Ending) -> None:
        """Tell how a request's output ended, before the request is freed."""
        self.endings[request_id] = ending

    @contextmanager
    def freeing(self, request: Request) -> Iterator[None]:
        """Label what is freed meanwhile as this request's."""
        turn = self.turn_of.get(request.request_id)
        if turn is not None and request.is_finished():
            self.turns.end(turn, self.endings.get(request.request_id, Ending.UNKNOWN))
        full, window = self.queues
        full.label = Label(turn)
        window.label = Label(turn, weight=self.tail_worth(request.num_computed_tokens))
        try:
            yield
        finally:
            full.label = window.label = NO_LABEL

    def finished(self, request: Request) -> None:
        """Forget a request."""
        self.turn_of.pop(request.request_id, None)
        self.endings.pop(request.request_id, None)

    def tail_worth(self, position: int) -> float:
        """Tokens that a resume at a position replays without its tail, for each of its blocks."""
        replayed = min(position, self.manager.rule.replay_bound)
        return max(1.0, replayed) / max(1, self.manager.window.rule.blocks)

    def _leaving(self, request_id: str, first: int, last: int) -> Iterator[tuple[int, int, Label]]:
        """Labels of SWA blocks that a running request's window leaves behind."""
        turn = self.turn_of.get(request_id)
        size = self.manager.window.block_size
        passed = Label(turn, weight=PASSED_TAIL * self.tail_worth(last * size))
        resume = self.manager.resumes.get(request_id)
        if resume is None or not resume.tail or turn is None or resume.start <= turn.shared:
            yield first, last, passed
            return
        taken = min(last, resume.start // size)
        if last > taken:
            yield max(first, taken), last, passed
        if taken > first:
            yield first, taken, SUPERSEDED
