"""MiMo-V2's model classes for vLLM, built on vLLM's own."""
