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

HOST_HIT_TOKENS = "host_hit_tokens"
HOST_HIT_REQUESTS = "host_hit_requests"
HOST_LOADED_FULL = "host_loaded_full_bytes"
HOST_LOADED_SWA = "host_loaded_swa_bytes"
HOST_STORED_FULL = "host_stored_full_bytes"
HOST_STORED_SWA = "host_stored_swa_bytes"
HOST_FULL_EVICTED = "host_full_blocks_evicted"
HOST_SWA_EVICTED = "host_swa_blocks_evicted"
HOST_BACKFILLED = "host_backfilled_blocks"
HOST_RESCUED = "host_rescued_blocks"
HOST_DROPPED = "host_dropped_blocks"
HOST_AHEAD = "host_blocks_loaded_ahead"
LOAD_SECONDS = "tier_load_seconds"
LOAD_EXPOSED_SECONDS = "tier_load_exposed_seconds"
L3_READ = "l3_read_bytes"
L3_WRITTEN = "l3_written_bytes"
L3_READ_BLOCKS = "l3_read_blocks"
L3_FAILED_BLOCKS = "l3_failed_blocks"
L3_WRITTEN_BLOCKS = "l3_written_blocks"
L3_DROPPED_BLOCKS = "l3_dropped_blocks"
L3_KEEP_ALIVES = "l3_keep_alives"
L3_RECOMPUTED = "l3_recomputed_requests"
L3_TIMEOUTS = "l3_timeouts"
HOST_FULL_USAGE = "host_full_usage"
HOST_SWA_USAGE = "host_swa_usage"

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
    HOST_HIT_TOKENS: "Prompt tokens that were not computed because host memory held their KV.",
    HOST_HIT_REQUESTS: "Requests that took KV from host memory.",
    HOST_LOADED_FULL: "Bytes of full-attention KV copied from host memory, over all ranks.",
    HOST_LOADED_SWA: "Bytes of SWA KV copied from host memory, over all ranks.",
    HOST_STORED_FULL: "Bytes of full-attention KV copied to host memory, over all ranks.",
    HOST_STORED_SWA: "Bytes of SWA KV copied to host memory, over all ranks.",
    HOST_FULL_EVICTED: "Full-attention blocks that were evicted from host memory.",
    HOST_SWA_EVICTED: "SWA blocks that were evicted from host memory.",
    HOST_BACKFILLED: "Blocks copied to host memory because only the device held them.",
    HOST_RESCUED: "Blocks copied to host memory just before the device overwrote them.",
    HOST_DROPPED: "Blocks not copied to host memory because all of it was in use.",
    HOST_AHEAD: "Blocks loaded a step before their request's own.",
    LOAD_SECONDS: "Seconds spent copying KV to the device, over all ranks (CPU only).",
    LOAD_EXPOSED_SECONDS: "Seconds that steps waited for copies, over all ranks (CPU only).",
    L3_READ: "Bytes read from L3 into host memory, over all ranks.",
    L3_WRITTEN: "Bytes written from host memory to L3, over all ranks.",
    L3_READ_BLOCKS: "Blocks read from L3.",
    L3_FAILED_BLOCKS: "Blocks that L3 said it held and did not give: late, damaged or an error.",
    L3_WRITTEN_BLOCKS: "Blocks written to L3, or found there.",
    L3_DROPPED_BLOCKS: "Blocks not written to L3: too many waited, or it failed.",
    L3_KEEP_ALIVES: "Blocks marked as used in L3 because upper tiers were asked for them.",
    L3_RECOMPUTED: "Requests computed because reading from L3 would have taken longer.",
    L3_TIMEOUTS: "Requests that went on without L3 after 'wait_s'.",
    SHADOW_CHECKS: "Requests with a cache hit that were computed again without the cache.",
    SHADOW_MISMATCHES: "Shadow checks whose output differed.",
}

GAUGES = {
    FULL_POOL_USAGE: "Share of the full-attention pool's blocks that requests hold (0 to 1).",
    SWA_POOL_USAGE: "Share of the SWA pool's blocks that requests hold (0 to 1).",
    HOST_FULL_USAGE: "Share of host memory's full-attention blocks that hold KV (0 to 1).",
    HOST_SWA_USAGE: "Share of host memory's SWA blocks that hold KV (0 to 1).",
}

FIGURES = (*COUNTERS, *GAUGES)
"""All names, in the order of the board."""
