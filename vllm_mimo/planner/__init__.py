"""`vllm-mimo plan`: how a MiMo-V2 model and its two KV pools fit on GPUs, without having them."""
