"""Names and meanings of the plugin's counters, as Prometheus shows them."""

PREFIX = "vllm_mimo:"

ENCODER_CACHE_HITS = "encoder_cache_hits"
ENCODER_CACHE_MISSES = "encoder_cache_misses"
ENCODED_TOKENS = "encoded_tokens"

COUNTERS = {
    ENCODER_CACHE_HITS: "Media items of requests whose embeddings an encoder had made before.",
    ENCODER_CACHE_MISSES: "Media items of requests that an encoder had to embed.",
    ENCODED_TOKENS: "Embeddings that the encoders made.",
}
