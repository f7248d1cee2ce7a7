"""Replay of request traces through real KV cache managers, on a virtual clock."""
