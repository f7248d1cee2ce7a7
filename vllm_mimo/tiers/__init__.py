"""Tiers of the KV cache below the device: host memory (L2), and what lies below that (L3)."""
