"""What the tiers of an engine under test have done; runs in the engine's process."""

from __future__ import annotations

from typing import Any

from vllm_mimo.tiers.director import TierDirector


def director(llm: Any) -> TierDirector:
    """The engine's."""
    found = llm.llm_engine.engine_core.engine_core.scheduler.connector.director
    assert isinstance(found, TierDirector)
    return found


def tier_figures(llm: Any) -> dict[str, int]:
    """Counts by name."""
    tiers = director(llm)
    counts, stores = tiers.counts, tiers.stores.counts
    return {
        "loaded_requests": counts.loaded_requests,
        "loaded_full": counts.loaded_blocks[0],
        "loaded_window": counts.loaded_blocks[1],
        "ahead": counts.ahead_blocks,
        "stored": stores.stored,
        "rescued": stores.rescued,
        "backfilled": stores.backfilled,
        "dropped": stores.dropped,
        "host_full_evicted": tiers.hosts[0].num_evicted,
        "host_window_evicted": tiers.hosts[1].num_evicted,
    }


def drain(llm: Any) -> None:
    """Let the engine finish what it stores."""
    core = llm.llm_engine.engine_core.engine_core
    for _ in range(1000):
        if not core.scheduler.has_requests():
            return
        core.step_fn()
    raise AssertionError("the tiers do not come to rest")
