"""Registries, configuration and the platform."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_MODELS_CONFIG = ("vllm.model_executor.models.config",)
_CONFIG = ("vllm.config",)
_DEFAULTS = "vllm_mimo.hooks.engine_defaults"
_TEXT = "vllm_mimo.models.text"

ENGINE_ENTRIES = (
    Entry(
        ("vllm.model_executor.models",),
        "ModelRegistry.register_model",
        used_by="vllm_mimo.plugin",
        why="our model classes take the place of vLLM's",
        parameters=("model_arch", "model_cls"),
    ),
    Entry(
        _MODELS_CONFIG,
        "MODELS_CONFIG_MAP",
        used_by=_DEFAULTS,
        why="checks and defaults of each architecture are registered here",
    ),
    Entry(
        _MODELS_CONFIG,
        "VerifyAndUpdateConfig.verify_and_update_config",
        used_by=_DEFAULTS,
        why="checks the checkpoint and sets engine defaults",
        parameters=("vllm_config",),
        overrides=True,
    ),
    Entry(
        _MODELS_CONFIG,
        "VerifyAndUpdateConfig.verify_and_update_model_config",
        used_by=_DEFAULTS,
        why="the other half of what is registered, left as it is",
        parameters=("model_config",),
    ),
    Entry(
        _CONFIG,
        "VllmConfig",
        used_by="vllm_mimo.config",
        why="holds the plugin's configuration, and everything else about an engine",
        attributes=(
            "additional_config",
            "attention_config",
            "cache_config",
            "ec_manager_config",
            "kv_transfer_config",
            "load_config",
            "max_in_flight_tokens",
            "model_config",
            "num_prefill_lookahead_tokens",
            "parallel_config",
            "quant_config",
            "scheduler_config",
            "speculative_config",
        ),
    ),
    Entry(
        _CONFIG,
        "ModelConfig",
        used_by=_DEFAULTS,
        why="the checkpoint, its config.json and how it is run",
        attributes=(
            "dtype",
            "hf_config",
            "hf_text_config",
            "max_model_len",
            "model",
            "multimodal_config",
            "original_max_model_len",
            "quantization",
            "revision",
            "runner_type",
            "served_model_name",
            "skip_tokenizer_init",
        ),
    ),
    Entry(
        _CONFIG,
        "LoadConfig",
        used_by=_DEFAULTS,
        why="formats that we can check, and where hub downloads go",
        attributes=("download_dir", "load_format"),
    ),
    Entry(
        _CONFIG,
        "CacheConfig",
        used_by=_TEXT,
        why="KV cache of a layer (a window here would be taken for that of full layers) and of all",
        attributes=(
            "block_size",
            "get_resolved_kv_cache_layout",
            "num_gpu_blocks_override",
            "prefix_caching_hash_algo",
            "prefix_match_unit",
            "sliding_window",
            "user_specified_block_size",
        ),
    ),
    Entry(
        _CONFIG,
        "ParallelConfig",
        used_by=_TEXT,
        why="which experts this rank holds, which process this is, and the worker's class",
        attributes=(
            "_api_process_rank",
            "data_parallel_index",
            "decode_context_parallel_size",
            "enable_ep_weight_filter",
            "eplb_config",
            "prefill_context_parallel_size",
            "tensor_parallel_size",
            "worker_cls",
        ),
    ),
    Entry(
        ("vllm.config.parallel",),
        "EPLBConfig",
        used_by=_TEXT,
        why="experts held twice",
        attributes=("num_redundant_experts",),
    ),
    Entry(
        ("vllm.config.attention",),
        "AttentionConfig",
        used_by="vllm_mimo.attention.layer",
        why="the backend that the user asked for",
        attributes=("backend",),
    ),
    Entry(
        _CONFIG,
        "get_current_vllm_config",
        used_by="vllm_mimo.attention.layer",
        why="the configuration of the engine that builds a model",
    ),
    Entry(
        ("vllm.platforms",),
        "current_platform",
        used_by="vllm_mimo.attention.layer",
        why="CPU or GPU",
        attributes=("is_cpu", "is_cuda", "is_cuda_alike", "device_type"),
    ),
    Entry(
        ("vllm.transformers_utils.config",),
        "_CONFIG_REGISTRY",
        used_by="vllm_mimo.hooks.hf_config",
        why="checkpoints load without remote code",
    ),
)
