"""Which policies a scheduler has: one line each, in the order in which they are asked."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mimo.scheduling.policy import SchedulingPolicy
    from vllm_mimo.scheduling.scheduler import MimoScheduler

TWO_POOL_POLICIES = (
    "vllm_mimo.scheduling.write_guard:WriteGuard",
    "vllm_mimo.scheduling.window_release:WindowRelease",
    "vllm_mimo.scheduling.junctions:Junctions",
    "vllm_mimo.scheduling.endings:Endings",
    "vllm_mimo.scheduling.tier_repairs:TierRepairs",
    "vllm_mimo.scheduling.kv_figures:KVFigures",
    "vllm_mimo.scheduling.tier_figures:TierFigures",
    "vllm_mimo.scheduling.shadow:ShadowCheck",
)
"""Policies of schedulers with two pools."""


def make_policies(scheduler: MimoScheduler) -> list[SchedulingPolicy]:
    """The policies of this scheduler."""
    names = TWO_POOL_POLICIES if scheduler.two_pools else ()
    made = []
    for name in names:
        module, _, attribute = name.partition(":")
        made.append(getattr(importlib.import_module(module), attribute)(scheduler))
    return made
