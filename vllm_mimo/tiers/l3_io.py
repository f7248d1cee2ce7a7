"""A worker's way to L3: moves values between host blocks and the client, one move after another.

Its thread only waits: the client's threads read, write and check. Blocks belong to a move until the
engine has let go of them, however late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_mimo.l3.keys import Label
from vllm_mimo.l3.outcome import HIT, MissCause
from vllm_mimo.tiers.moves import RemoteMove
from vllm_mimo.tiers.regions import TierRegions

if TYPE_CHECKING:
    from vllm_mimo.l3.client import L3Client
    from vllm_mimo.l3.transfer import Transfer

BATCH_BYTES = 32 << 20
"""Of a call: more would not be done by its deadline."""


class L3Mover:
    """Values from and to L3.

    Args:
        client: of this rank.
        regions: where host blocks are.
    """

    def __init__(self, client: L3Client, regions: TierRegions) -> None:
        self.client = client
        self.regions = regions
        self.finished = threading.Event()
        """Set when a fetch is done, for a step that has nothing else to do."""
        self._guard = threading.Condition()
        self._fetches: deque[RemoteMove] = deque()
        self._spills: deque[RemoteMove] = deque()
        self._touches: deque[RemoteMove] = deque()
        self._done: dict[int, set[int]] = {}
        self._open_fetches = 0
        self._closing = False
        self._bytes = [0, 0]
        self._thread = threading.Thread(target=self._run, name="kv-l3", daemon=True)
        self._thread.start()

    def start(
        self,
        fetches: Sequence[RemoteMove],
        spills: Sequence[RemoteMove],
        touches: Sequence[RemoteMove],
    ) -> None:
        """Queue moves."""
        if not (fetches or spills or touches):
            return
        with self._guard:
            self._fetches.extend(fetches)
            self._spills.extend(spills)
            self._touches.extend(touches)
            self._open_fetches += len(fetches)
            self._guard.notify()

    def take(self) -> dict[int, set[int]]:
        """Operations that have ended since the last call, with the indexes that failed."""
        with self._guard:
            done, self._done = self._done, {}
            self.finished.clear()
        return done

    def take_bytes(self) -> tuple[int, int]:
        """Bytes read and written since the last call."""
        with self._guard:
            read, written = self._bytes
            self._bytes = [0, 0]
        return read, written

    def idle(self, seconds: float) -> None:
        """Wait for a fetch, if there is one, for so long at most."""
        if self._open_fetches:
            self.finished.wait(seconds)

    def close(self) -> None:
        """Write what is queued, for as long as the client is willing to, and close it."""
        with self._guard:
            self._closing = True
            self._guard.notify()
        self._thread.join(2 * self.client.settings.wait_s)
        self.client.close()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._guard:
                self._guard.wait_for(
                    lambda: self._fetches or self._spills or self._touches or self._closing
                )
                if self._fetches:
                    kind, move = "fetch", self._fetches.popleft()
                elif self._touches:
                    kind, move = "touch", self._touches.popleft()
                elif self._spills:
                    kind, move = "spill", self._spills.popleft()
                else:
                    return
            if kind == "touch":
                self.client.touch(_label(move), [(move.group, key) for _, key in move.blocks])
            else:
                self._move(move, kind == "fetch")

    def _move(self, move: RemoteMove, fetch: bool) -> None:
        """Do one move; it ends when its last call has let go of its blocks."""
        size = max(1, BATCH_BYTES // max(1, self.regions.block_bytes(move.group)))
        failed: set[int] = set()
        transfers: list[Transfer] = []
        for first in range(0, len(move.blocks), size):
            part = move.blocks[first : first + size]
            keys = [(move.group, key) for _, key in part]
            bufs = [(self.regions.value(move.group, block),) for block, _ in part]
            verb = self.client.get_into if fetch else self.client.put
            transfer = verb(_label(move), keys, bufs)
            transfers.append(transfer)
            outcomes = transfer.statuses.result()
            failed.update(first + i for i, o in enumerate(outcomes) if o is not HIT)
            moved = sum(o is HIT for o in outcomes) * self.regions.block_bytes(move.group)
            with self._guard:
                self._bytes[0 if fetch else 1] += moved
            if fetch and any(o in (MissCause.BREAKER, MissCause.TIMEOUT) for o in outcomes):
                failed.update(range(first + size, len(move.blocks)))
                break
        left = len(transfers)
        guard = threading.Lock()

        def let_go(_: object) -> None:
            nonlocal left
            with guard:
                left -= 1
                last = not left
            if last:
                self._end(move.op, failed, fetch)

        for transfer in transfers:
            transfer.released.add_done_callback(let_go)

    def _end(self, op: int, failed: set[int], fetch: bool) -> None:
        with self._guard:
            self._done[op] = failed
            self._open_fetches -= fetch
        if fetch:
            self.finished.set()


def _label(move: RemoteMove) -> Label:
    return Label(move.tenant, move.prefix)
