"""Computes a sample of cache hits again without the cache, and compares the outputs.

A check on the running system: with greedy sampling both must write the same tokens, up to ties of
rounding. The second request is the engine's own; no client sees it.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from vllm.v1.request import Request, RequestStatus

from vllm_mimo.metrics.board import engine_board
from vllm_mimo.metrics.names import SHADOW_CHECKS, SHADOW_MISMATCHES
from vllm_mimo.scheduling.policy import SchedulingPolicy

if TYPE_CHECKING:
    from vllm_mimo.scheduling.scheduler import MimoScheduler

logger = logging.getLogger("vllm.vllm_mimo")

SUFFIX = "-shadow"
"""Ends the ids of the engine's own requests."""


class ShadowCheck(SchedulingPolicy):
    """Repeats a share of the greedy requests that took tokens from the cache."""

    def __init__(self, scheduler: MimoScheduler) -> None:
        super().__init__(scheduler)
        self.fraction = scheduler.mimo_config.shadow_fraction
        self.board = engine_board(scheduler.vllm_config)
        self.random = random.Random(0)
        self.expected: dict[str, tuple[int, ...] | None] = {}
        """Output that each running check has to write; None where it means nothing any more."""

    def request_ends(self, request: Request) -> None:
        if request.request_id in self.expected:
            self._compare(request, self.expected.pop(request.request_id))
        elif self.random.random() < self.fraction and self._worth_checking(request):
            self._start(request)

    def _worth_checking(self, request: Request) -> bool:
        sampling = request.sampling_params
        done = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        manager = self.scheduler.kv_cache_manager
        resume = getattr(manager, "resumes", {}).get(request.request_id)
        return bool(
            done
            and resume is not None
            and resume.start
            and sampling is not None
            and sampling.temperature == 0
            and request.prompt_token_ids
            and request.num_output_tokens
            and not request.mm_features
            and not request.use_structured_output
        )

    def _start(self, request: Request) -> None:
        sampling = request.sampling_params
        assert sampling is not None
        output = tuple(request.output_token_ids)
        sampling = sampling.clone()
        sampling.max_tokens = len(output)
        sampling.logprobs = sampling.prompt_logprobs = None
        sampling.skip_reading_prefix_cache = True
        check = Request(
            request_id=request.request_id + SUFFIX,
            prompt_token_ids=list(request.prompt_token_ids or ()),
            sampling_params=sampling,
            pooling_params=None,
            client_index=request.client_index,
            lora_request=request.lora_request,
            cache_salt=request.cache_salt,
            priority=request.priority + 1,
            block_hasher=request._block_hasher,
        )
        self.expected[check.request_id] = output
        self.scheduler.add_request(check)

    def before_reset(self) -> None:
        if self.expected:
            self.scheduler.finish_requests(list(self.expected), RequestStatus.FINISHED_ABORTED)

    def caches_dropped(self) -> None:
        for request_id in self.expected:  # e.g. written with other weights
            self.expected[request_id] = None

    def _compare(self, check: Request, expected: tuple[int, ...] | None) -> None:
        got = tuple(check.output_token_ids)
        if expected is None or check.status not in (
            RequestStatus.FINISHED_LENGTH_CAPPED,
            RequestStatus.FINISHED_STOPPED,
        ):
            return
        self.board.add(SHADOW_CHECKS)
        if got != expected:
            self.board.add(SHADOW_MISMATCHES)
            pairs = enumerate(zip(got, expected, strict=False))
            shorter = min(len(got), len(expected))
            first = next((i for i, (a, b) in pairs if a != b), shorter)
            logger.warning(
                "shadow check of %s: token %d of the output is %s with the cache and %s without",
                check.request_id.removesuffix(SUFFIX),
                first,
                expected[first : first + 1],
                got[first : first + 1],
            )
