"""Which of a running request's tokens are final."""

from __future__ import annotations

from vllm.v1.request import Request


def settled_tokens(request: Request) -> int:
    """Tokens whose KV is computed and whose ids are known.

    In-flight steps and drafts are not: they may still be rejected. The last sampled token has no
    KV yet.
    """
    computed = request.num_computed_tokens - request.num_output_placeholders
    return max(0, min(computed, request.num_tokens))
