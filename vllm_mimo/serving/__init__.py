"""A `vllm serve` as a child process, and what its metrics say: for demos, tests, benchmarks."""
