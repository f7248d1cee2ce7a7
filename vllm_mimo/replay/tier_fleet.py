"""One engine or several behind a router that does not know what they hold, seen as one driver.

Requests are admitted in order of arrival over all engines, so one that waits for its engine holds
up the others: play them `--instant`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_mimo.replay.policy import CacheDriver, Lookup
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.replay.tier_options import Route
from vllm_mimo.replay.tier_store import RemoteIndex

MOVE_S = 1800.0
"""A session that moves is sent to an engine anew after so long."""


class Fleet:
    """A `CacheDriver`.

    Args:
        engines: with caches of their own, perhaps with a tier that they share.
        route: see `TierOptions`.
        shared: the tier that they share.
    """

    def __init__(
        self, engines: Sequence[CacheDriver], route: Route, shared: RemoteIndex | None = None
    ) -> None:
        self.engines = engines
        self.shared = shared
        self.route = route
        self.hash_block_size = engines[0].hash_block_size
        self.capacity: Mapping[str, int] = _sum(engine.capacity for engine in engines)
        self.facts: Mapping[str, Any] = dict(engines[0].facts) | {"engines": len(engines)}

    def engine_of(self, request: ReplayRequest) -> CacheDriver:
        """Always the same one for a request."""
        period = int(request.arrival_time // MOVE_S)
        session = request.session_id or request.request_id
        names = {"request": request.request_id, "session": session}
        draw = random.Random(f"route {names.get(self.route, f'{session} {period}')}")
        return self.engines[draw.randrange(len(self.engines))]

    def lookup(self, request: ReplayRequest) -> Lookup:
        return self.engine_of(request).lookup(request)

    def admit(self, request: ReplayRequest, lookup: Lookup, tokens: int, idle: bool) -> bool:
        return self.engine_of(request).admit(request, lookup, tokens, idle)

    def step(self, request: ReplayRequest, tokens: int) -> bool:
        return self.engine_of(request).step(request, tokens)

    def finish(self, request: ReplayRequest, ended_in_tool_call: bool | None) -> None:
        self.engine_of(request).finish(request, ended_in_tool_call)

    def preempt(self, request: ReplayRequest) -> None:
        self.engine_of(request).preempt(request)

    def used_blocks(self) -> Mapping[str, int]:
        return _sum(engine.used_blocks() for engine in self.engines)

    def evictions(self) -> Mapping[str, int]:
        return _sum(engine.evictions() for engine in self.engines)

    def miss_reasons(self) -> Mapping[str, int] | None:
        return _sum(engine.miss_reasons() or {} for engine in self.engines)

    def tier_figures(self) -> Mapping[str, int] | None:
        own = [engine.tier_figures() or {} for engine in self.engines]
        if not any(own):
            return None
        return _sum([*own, self.shared.figures() if self.shared is not None else {}])


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
