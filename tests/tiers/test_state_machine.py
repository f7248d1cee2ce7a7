"""The device's pools and host memory under random schedules: all that is found is exact."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

from tests.kv.geometry import Geometry
from tests.kv.test_state_machine import LENGTHS, PROFILE, Schedules, geometries
from tests.tiers.model import TieredEngine, check_host
from vllm_mimo.tiers.director import TierPolicy


class TieredSchedules(Schedules):
    """What may happen to the tiers."""

    @initialize(
        geometry=geometries(),
        junctions=st.lists(LENGTHS, max_size=2),
        full=st.sampled_from([4, 20, 60, 200]),
        window=st.sampled_from([4, 12, 60]),
        ahead=st.booleans(),
        backfill=st.sampled_from([0, 2, 64]),
        late=st.integers(0, 2),
    )
    def start(  # type: ignore[override]
        self,
        geometry: Geometry,
        junctions: list[int],
        full: int,
        window: int,
        ahead: bool,
        backfill: int,
        late: int,
    ) -> None:
        policy = TierPolicy(ahead=ahead, backfill=backfill)
        self.engine: TieredEngine = TieredEngine(geometry, (full, window), policy, late)
        self.engine.manager.junctions = lambda request: [
            position for position in junctions if position <= request.num_prompt_tokens
        ]

    @invariant()
    def host_memory_is_exact(self) -> None:
        if hasattr(self, "engine"):
            check_host(self.engine)


def test_schedules_with_tiers() -> None:
    run_state_machine_as_test(TieredSchedules, settings=PROFILE)
