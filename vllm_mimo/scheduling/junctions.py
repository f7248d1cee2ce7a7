"""Foresees where prompts part: at the end of the system prompt, tools included.

Siblings share what comes before the first user turn. In MiMo's chat template every turn starts with
one special token, so its second occurrence is the end of the system turn. A tail kept there lets
the first sibling reuse it at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.scheduling.policy import SchedulingPolicy

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from vllm_mimo.scheduling.scheduler import MimoScheduler

logger = logging.getLogger("vllm.vllm_mimo")

TURN_START = "<|im_start|>"
"""Starts every turn in the chat template of the MiMo-V2 models."""


class Junctions(SchedulingPolicy):
    """Names the end of the system turn to the cache."""

    def __init__(self, scheduler: MimoScheduler) -> None:
        super().__init__(scheduler)
        self.turn_start = special_token(scheduler, TURN_START)
        manager = scheduler.kv_cache_manager
        assert isinstance(manager, MimoKVCacheManager)
        if self.turn_start is not None:
            manager.junctions = self.positions

    def positions(self, request: Request) -> list[int]:
        """The end of the system turn, in tokens; nothing for prompts that start without one."""
        tokens = request.prompt_token_ids
        if not tokens or tokens[0] != self.turn_start:
            return []
        try:
            return [tokens.index(self.turn_start, 1)]
        except ValueError:
            return []


def special_token(scheduler: MimoScheduler, token: str) -> int | None:
    """A special token's id; None where the model's tokenizer is not loaded or has none."""
    model = scheduler.vllm_config.model_config
    if model.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    try:
        vocabulary = cached_tokenizer_from_config(model).get_vocab()
    except Exception as error:  # a tokenizer is a help here, not a need
        logger.warning("no tokenizer in the scheduler (%s): no tails at turn starts", error)
        return None
    return vocabulary.get(token)
