"""Lets a worker's model runner, V1 or V2, call our parts in each step.

The runner is made by vLLM's worker; it becomes an instance of a subclass of its own class. Only
this module knows how the two runners prepare a step.
"""

from __future__ import annotations

from typing import Any

from vllm_mimo.worker.parts import StepPart, make_parts


class _Seam:
    """Common to both runners."""

    mimo_parts: list[StepPart]

    def initialize_kv_cache(self, kv_cache_config: Any, *args: Any, **kwargs: Any) -> Any:
        self.mimo_parts = make_parts(kv_cache_config)
        return super().initialize_kv_cache(  # type: ignore[misc]
            kv_cache_config, *args, **kwargs
        )

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for part in self.mimo_parts:
            part.before_step(scheduler_output)
        self.mimo_stepping = True
        try:
            return super().execute_model(  # type: ignore[misc]
                scheduler_output, *args, **kwargs
            )
        finally:
            self.mimo_stepping = False


class V1Seam(_Seam):
    """vLLM's first runner (`v1/worker/gpu_model_runner.py`), which CPUs use."""

    mimo_stepping = False

    def _get_slot_mappings(self, *args: Any, **kwargs: Any) -> Any:
        by_group, by_layer = super()._get_slot_mappings(*args, **kwargs)  # type: ignore[misc]
        if by_group is not None and self.mimo_stepping and self.mimo_parts:
            batch = self.input_batch  # type: ignore[attr-defined]
            slots = [by_group[group] for group in sorted(by_group)]
            starts = self.query_start_loc.np  # type: ignore[attr-defined]
            for part in self.mimo_parts:
                part.slot_mappings(slots, batch.req_ids, batch.num_computed_tokens_cpu, starts)
        return by_group, by_layer


class V2Seam(_Seam):
    """vLLM's second runner (`v1/worker/gpu/model_runner.py`), which GPUs use."""

    mimo_stepping = False

    def prepare_attn(self, input_batch: Any) -> Any:
        block_tables, slots = super().prepare_attn(input_batch)  # type: ignore[misc]
        if self.mimo_stepping and self.mimo_parts:
            for part in self.mimo_parts:
                part.slot_mappings(
                    slots,
                    input_batch.req_ids,
                    input_batch.num_computed_tokens_np,
                    input_batch.query_start_loc_np,
                )
        return block_tables, slots


def add_seam(runner: Any) -> None:
    """Turn a runner into one that calls our parts. May be called again."""
    kind = type(runner)
    if issubclass(kind, _Seam):
        return
    seam = V2Seam if hasattr(kind, "prepare_attn") else V1Seam
    runner.__class__ = type(f"Mimo{kind.__name__}", (seam, kind), {})
    runner.mimo_parts = []
