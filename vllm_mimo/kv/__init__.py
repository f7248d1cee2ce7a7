"""KV cache in two pools, full attention and sliding window (SWA) apart, under one sequence."""
