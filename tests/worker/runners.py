"""Stand-ins for vLLM's two model runners: what the seam needs of them, with real tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from vllm_mimo.kv.spec import FullPoolSpec, WindowPoolSpec
from vllm_mimo.scheduling.handover import WRITE_STARTS

HEADS = {"num_kv_heads": 1, "head_size": 4, "dtype": torch.bfloat16}
PADDING = 3
"""Tokens that a step is padded by."""


def two_pools() -> KVCacheConfig:
    full = FullPoolSpec(block_size=16, **HEADS)
    window = WindowPoolSpec(block_size=16, sliding_window=32, pool_blocks=8, **HEADS)
    groups = [KVCacheGroupSpec(["f"], full), KVCacheGroupSpec(["s"], window)]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)


def one_pool() -> KVCacheConfig:
    specs = [FullAttentionSpec(block_size=16, **HEADS)] * 2
    groups = [KVCacheGroupSpec([str(i)], spec) for i, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)


def step(starts: dict[str, int] | None, **scheduled: int) -> SchedulerOutput:
    """vLLM's own output with `scheduled` tokens a request; None leaves our attribute out."""
    output = SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[],
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
    )
    if starts is not None:
        setattr(output, WRITE_STARTS, starts)
    return output


class Runner:
    """Common to both: computed tokens of each request, and the slots of the last step.

    Slots are the position in the sequence, plus 1,000 for each request in the batch.
    """

    def __init__(self, groups: int = 2) -> None:
        self.groups = groups
        self.computed: dict[str, int] = {}
        self.order: list[str] | None = None
        """The batch's order where it is not that of the scheduler."""
        self.seen: dict[str, Any] = {}

    def initialize_kv_cache(self, kv_cache_config: Any, is_profiling: bool = False) -> str:
        self.kv_cache_config = kv_cache_config
        self.seen["profiling"] = is_profiling
        return "initialized"

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        self.seen["intermediate"] = intermediate_tensors
        scheduled = scheduler_output.num_scheduled_tokens
        if "fails" in scheduled:
            raise RuntimeError("out of memory")
        rows = self.order or list(scheduled)
        self.seen["slots"] = self.prepare(rows, [scheduled[r] for r in rows])
        for request_id, tokens in scheduled.items():
            self.computed[request_id] = self.computed.get(request_id, 0) + tokens
        return self.seen["slots"]

    def raw_slots(self, rows: list[str], tokens: list[int]) -> torch.Tensor:
        """(groups, padded tokens), the padding -1 as in vLLM."""
        slots = [
            1000 * row + self.computed.get(request_id, 0) + i
            for row, (request_id, count) in enumerate(zip(rows, tokens, strict=True))
            for i in range(count)
        ]
        return torch.tensor([slots + [-1] * PADDING] * self.groups, dtype=torch.int64)

    def batch(self, rows: list[str], tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Computed tokens and query starts, in vLLM's buffers longer than the batch."""
        computed = np.array([self.computed.get(r, 0) for r in rows] + [7] * 4, dtype=np.int32)
        starts = np.cumsum([0, *tokens], dtype=np.int32)
        return computed, np.append(starts, [starts[-1]] * 4)

    def prepare(self, rows: list[str], tokens: list[int]) -> list[list[int]]:
        raise NotImplementedError


class V1Runner(Runner):
    def prepare(self, rows: list[str], tokens: list[int]) -> list[list[int]]:
        computed, starts = self.batch(rows, tokens)
        self.input_batch = SimpleNamespace(req_ids=rows, num_computed_tokens_cpu=computed)
        self.query_start_loc = SimpleNamespace(np=starts)
        self.buffer = self.raw_slots(rows, tokens)
        total = sum(tokens)
        by_group, by_layer = self._get_slot_mappings(
            num_tokens_padded=total + PADDING,
            num_reqs_padded=len(rows),
            num_tokens_unpadded=total,
        )
        for group, layer in enumerate(by_layer.values()):
            assert torch.equal(layer, by_group[group]), "layers read what metadata read"
        return [by_group[group].tolist() for group in range(self.groups)]

    def _get_slot_mappings(
        self,
        num_tokens_padded: int,
        num_reqs_padded: int,
        num_tokens_unpadded: int,
        ubatch_slices: Any = None,
    ) -> Any:
        if not hasattr(self, "buffer"):
            return None, None
        by_group = {group: self.buffer[group] for group in range(self.groups)}
        return by_group, {f"layers.{group}": slots for group, slots in by_group.items()}

    def _dummy_run(self, rows: list[str], tokens: list[int]) -> list[list[int]]:
        return self.prepare(rows, tokens)


class V2Runner(Runner):
    def execute_model(
        self, scheduler_output: Any, intermediate_tensors: Any = None, dummy_run: bool = False
    ) -> Any:
        if dummy_run:
            rows = list(scheduler_output.num_scheduled_tokens)
            tokens = list(scheduler_output.num_scheduled_tokens.values())
            return self.raw_slots(rows, tokens).tolist()
        return super().execute_model(scheduler_output, intermediate_tensors)

    def prepare(self, rows: list[str], tokens: list[int]) -> list[list[int]]:
        computed, starts = self.batch(rows, tokens)
        tables, slots = self.prepare_attn(
            SimpleNamespace(
                req_ids=rows,
                num_computed_tokens_np=computed,
                query_start_loc_np=starts,
                slots=self.raw_slots(rows, tokens),
            )
        )
        assert tables == "tables"
        return slots.tolist()

    def prepare_attn(self, input_batch: Any) -> Any:
        return "tables", input_batch.slots

    def _dummy_run(self, rows: list[str], tokens: list[int]) -> list[list[int]]:
        return self.execute_model(
            step(None, **dict(zip(rows, tokens, strict=True))), dummy_run=True
        )
