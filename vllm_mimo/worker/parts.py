"""What takes part in a worker's steps, for both of vLLM's model runners.

A part is told about each step before it runs and may change what the runner prepares for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from vllm_mimo.kv.groups import FULL_GROUP
from vllm_mimo.scheduling.handover import WRITE_STARTS

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig

PAD_SLOT = -1
"""A slot that vLLM's cache kernels skip."""


class StepPart:
    """Moments of a worker's step; every method may be left out."""

    def __init__(self, kv_cache_config: KVCacheConfig) -> None:
        self.kv_cache_config = kv_cache_config

    def before_step(self, output: SchedulerOutput) -> None:
        """A step is about to be prepared."""

    def slot_mappings(
        self,
        slots: Sequence[torch.Tensor],
        request_ids: Sequence[str],
        first_tokens: Sequence[int],
        query_starts: Sequence[int],
    ) -> None:
        """Change in place where a step writes KV.

        Args:
            slots: for each KV cache group, (tokens,) int64 slots.
            request_ids: in the order of the batch.
            first_tokens: position of each request's first token in this step.
            query_starts: index of each request's first token among the step's, and their number.
        """


class WriteGuardPart(StepPart):
    """Keeps recomputed tokens from overwriting the full-attention KV that is cached for them."""

    def __init__(self, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(kv_cache_config)
        self.write_starts: dict[str, int] = {}

    def before_step(self, output: SchedulerOutput) -> None:
        self.write_starts = getattr(output, WRITE_STARTS, {})

    def slot_mappings(
        self,
        slots: Sequence[torch.Tensor],
        request_ids: Sequence[str],
        first_tokens: Sequence[int],
        query_starts: Sequence[int],
    ) -> None:
        if not self.write_starts:
            return
        for index, request_id in enumerate(request_ids):
            write_start = self.write_starts.get(request_id)
            if write_start is None:
                continue
            begin, end = query_starts[index], query_starts[index + 1]
            guarded = min(end - begin, write_start - first_tokens[index])
            if guarded > 0:
                slots[FULL_GROUP][begin : begin + guarded].fill_(PAD_SLOT)


def make_parts(kv_cache_config: KVCacheConfig) -> list[StepPart]:
    """The parts of a worker with this KV cache."""
    from vllm_mimo.kv.spec import has_two_pools

    return [WriteGuardPart(kv_cache_config)] if has_two_pools(kv_cache_config) else []
