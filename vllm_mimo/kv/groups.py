"""Which KV cache group is which; imports nothing, so that workers without vLLM can be tested."""

FULL_GROUP = 0
"""Index of the full-attention group among the KV cache groups."""

WINDOW_GROUP = 1
"""Index of the group of all SWA layers, MTP layers included."""
