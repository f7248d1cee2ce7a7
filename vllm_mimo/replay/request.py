"""A stand-in for `vllm.v1.request.Request` without token ids.

It has what the managers read of a request; prompts of 10^8 tokens in all fit into memory because a
request knows only how many tokens it has and the hashes of its blocks.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import RequestStatus

from vllm_mimo.replay.hashes import sequence_hashes
from vllm_mimo.traces.form import TraceRequest


class ReplayRequest:
    """One request on its way through a manager. Counts are of tokens."""

    def __init__(self, trace: TraceRequest, number: int, hash_block: int) -> None:
        self.trace = trace
        self.finished = False
        self.admission = 0
        """Serial number of the admission that it runs under; 0 while it waits."""
        self.counted = False
        """Whether its hits are in the measurements already, as after a preemption."""
        self.hash_block = hash_block
        self.request_id = str(number)
        self.session_id = trace.session or None
        self.arrival_time = trace.arrival_s
        self.num_prompt_tokens = trace.input_tokens
        self.num_tokens = trace.input_tokens
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_output_placeholders = 0
        self.num_preemptions = 0
        self.shared_prefix_boundary = 0
        self.replay_start = 0
        self.status = RequestStatus.WAITING
        self.skip_reading_prefix_cache = False
        self.is_prefill_chunk = False
        self.mm_features: list[Any] = []
        self.spec_token_ids: list[int] = []
        self.lora_request = None
        self.cache_salt = None
        self.kv_hints = None
        self.kv_transfer_params = None
        self.prefill_stats = None
        self.priority = 0
        self._hashes = sequence_hashes(trace, number, hash_block)
        self.block_hashes = self._hashes[: trace.input_tokens // hash_block]

    def is_finished(self) -> bool:
        """Whether its output is complete."""
        return self.finished

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def append_output(self, tokens: int) -> None:
        """Add `tokens` generated tokens and the hashes of the blocks that they fill."""
        self.num_tokens += tokens
        have = len(self.block_hashes)
        self.block_hashes += self._hashes[have : self.num_tokens // self.hash_block]
