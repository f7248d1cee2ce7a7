"""What the plugin hangs into vLLM at start-up: configs, per-model defaults, server defaults."""
