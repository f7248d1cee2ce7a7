"""Names and meanings of the plugin's figures, as Prometheus shows them."""

PREFIX = "vllm_mimo:"

ENCODER_CACHE_HITS = "encoder_cache_hits"
ENCODER_CACHE_MISSES = "encoder_cache_misses"
ENCODED_TOKENS = "encoded_tokens"

FULL_POOL_USAGE = "full_pool_usage"
SWA_POOL_USAGE = "swa_pool_usage"
FULL_EVICTED = "full_blocks_evicted"
SWA_EVICTED = "swa_blocks_evicted"
CACHED_TOKENS = "prefix_cached_tokens"
REPLAYS = "prefix_replays"
MISSED_NO_PREFIX = "prefix_missed_tokens_no_prefix"
MISSED_EVICTED = "prefix_missed_tokens_evicted_full"
MISSED_NO_TAIL = "prefix_missed_tokens_no_tail"
MISSED_SALT = "prefix_missed_tokens_salt"
REFUSED_ADMISSIONS = "refused_admissions"
SHADOW_CHECKS = "shadow_checks"
SHADOW_MISMATCHES = "shadow_mismatches"

COUNTERS = {
    ENCODER_CACHE_HITS: "Media items of requests whose embeddings an encoder had made before.",
    ENCODER_CACHE_MISSES: "Media items of requests that an encoder had to embed.",
    ENCODED_TOKENS: "Embeddings that the encoders made.",
    FULL_EVICTED: "Cached full-attention blocks that were evicted.",
    SWA_EVICTED: "Cached SWA blocks that were evicted.",
    CACHED_TOKENS: "Prompt tokens that were not computed because they were cached.",
    REPLAYS: "Requests that resumed without an SWA tail, by a bounded replay.",
    MISSED_NO_PREFIX: "Prompt tokens computed because nothing was cached for them.",
    MISSED_EVICTED: "Prompt tokens computed because a full-attention block had been evicted.",
    MISSED_NO_TAIL: "Prompt tokens computed again below a full-attention hit, for want of an SWA "
    "tail at its end.",
    MISSED_SALT: "Prompt tokens of requests with a cache salt under which nothing was cached.",
    REFUSED_ADMISSIONS: "Times a waiting request was not admitted for want of free blocks.",
    SHADOW_CHECKS: "Requests with a cache hit that were computed again without the cache.",
    SHADOW_MISMATCHES: "Shadow checks whose output differed.",
}

GAUGES = {
    FULL_POOL_USAGE: "Share of the full-attention pool's blocks that requests hold (0 to 1).",
    SWA_POOL_USAGE: "Share of the SWA pool's blocks that requests hold (0 to 1).",
}

FIGURES = (*COUNTERS, *GAUGES)
"""All names, in the order of the board."""
