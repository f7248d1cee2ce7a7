"""vLLM's encoder cache manager, counting: how often media were embedded before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from vllm_mimo.metrics.board import BoardWriter, engine_board
from vllm_mimo.metrics.names import (
    ENCODED_TOKENS,
    ENCODER_CACHE_HITS,
    ENCODER_CACHE_MISSES,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


class CountingEncoderCacheManager(EncoderCacheManager):
    """One hit or miss for each medium of a request, however many steps its prefill takes."""

    board: BoardWriter

    @classmethod
    def create_manager(
        cls, *, cache_size: int, vllm_config: VllmConfig
    ) -> CountingEncoderCacheManager:
        made = cls(cache_size)
        made.board = engine_board(vllm_config)
        return made

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        known = input_id in self.request_cached_ids.get(request.request_id, ())
        found = super().check_and_update_cache(request, input_id)
        if found and not known:
            self.board.add(ENCODER_CACHE_HITS)
        return found

    def allocate(self, request: Request, input_id: int) -> None:
        super().allocate(request, input_id)
        self.board.add(ENCODER_CACHE_MISSES)
        self.board.add(ENCODED_TOKENS, request.get_num_encoder_embeds(input_id))
