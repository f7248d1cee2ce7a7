"""What prepares media and what loads videos: vLLM's base classes, fields, prompts and switches."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_INPUTS = ("vllm.multimodal.inputs",)
_PROCESSING = ("vllm.multimodal.processing",)
_VIDEO = ("vllm.multimodal.video",)
_PROCESSOR = "vllm_mimo.multimodal.processor"
_LOADER = "vllm_mimo.multimodal.video_loader"
_DEFAULTS = "vllm_mimo.hooks.media_defaults"
_CACHE = ("vllm.v1.core.encoder_cache_manager",)
_COUNTING = "vllm_mimo.multimodal.encoder_cache"

PROCESSING_ENTRIES = (
    Entry(
        _PROCESSING,
        "BaseMultiModalProcessor.__init__",
        used_by=_PROCESSOR,
        why="base class of our processor",
        parameters=("info", "dummy_inputs"),
    ),
    Entry(
        _PROCESSING,
        "BaseMultiModalProcessor._call_hf_processor",
        used_by=_PROCESSOR,
        why="media to tensors, without a processor of transformers",
        parameters=("hf_data", "hf_kwargs"),
        overrides=True,
    ),
    Entry(
        _PROCESSING,
        "BaseMultiModalProcessor._get_mm_fields_config",
        used_by=_PROCESSOR,
        why="which part of a tensor belongs to which item",
        parameters=("hf_inputs", "hf_processor_mm_kwargs"),
        overrides=True,
    ),
    Entry(
        _PROCESSING,
        "BaseMultiModalProcessor._get_prompt_updates",
        used_by=_PROCESSOR,
        why="tokens that stand for an item",
        parameters=("mm_items", "hf_processor_mm_kwargs", "out_mm_kwargs"),
        overrides=True,
    ),
    Entry(
        ("vllm.model_executor.models.qwen2_vl",),
        "_create_qwen2vl_field_factory",
        used_by=_PROCESSOR,
        why="fields of pictures, also of embeddings that a user sends",
        parameters=("spatial_merge_size",),
    ),
    Entry(
        _INPUTS,
        "MultiModalFieldConfig.flat_from_sizes",
        used_by=_PROCESSOR,
        why="pixels of videos stay on the CPU",
        parameters=("modality", "size_per_item", "keep_on_cpu"),
    ),
    Entry(
        _INPUTS,
        "MultiModalFieldConfig.batched",
        used_by=_PROCESSOR,
        why="fields with one entry an item",
        parameters=("modality", "keep_on_cpu"),
    ),
    Entry(
        _INPUTS,
        "MultiModalKwargsItems",
        used_by=_PROCESSOR,
        why="prepared items, by kind",
        attributes=("__getitem__",),
    ),
    Entry(
        _INPUTS,
        "MultiModalFieldElem",
        used_by=_PROCESSOR,
        why="one field of a prepared item",
        attributes=("data",),
    ),
    Entry(
        _PROCESSING,
        "PromptReplacement",
        used_by=_PROCESSOR,
        why="placeholder and what takes its place, in this order",
        attributes=("modality", "target", "replacement"),
    ),
    Entry(_PROCESSING, "PromptUpdate", used_by=_PROCESSOR, why="base class of a replacement"),
    Entry(
        _PROCESSING,
        "PromptUpdateDetails",
        used_by=_PROCESSOR,
        why="tokens, and which of them embeddings replace",
        attributes=("full", "is_embed"),
    ),
    Entry(
        _PROCESSING,
        "PromptUpdateDetails.from_seq",
        used_by=_PROCESSOR,
        why="tokens that embeddings replace, all of them",
        parameters=("seq",),
    ),
    Entry(
        _VIDEO,
        "VIDEO_LOADER_REGISTRY.register",
        used_by=_LOADER,
        why="our loader is found by its name",
        parameters=("name",),
    ),
    Entry(
        _VIDEO,
        "VideoLoader.load_bytes",
        used_by=_LOADER,
        why="bytes of a file to frames; options come by keyword",
        parameters=("data",),
        overrides=True,
    ),
    Entry(
        ("vllm.multimodal.media",),
        "VideoMediaIO.__init__",
        used_by=_LOADER,
        why="hands num_frames, and the other keys of media_io_kwargs as they are, to the loader",
        parameters=("image_io", "num_frames"),
    ),
    Entry(
        ("vllm.config.multimodal",),
        "MultiModalConfig",
        used_by=_DEFAULTS,
        why="how media are loaded, where the loader is chosen",
        attributes=("media_io_kwargs",),
    ),
    Entry(
        ("vllm",),
        "envs",
        used_by=_DEFAULTS,
        why="vLLM's variables for limits and for the loader",
        attributes=(
            "VLLM_AUDIO_FETCH_TIMEOUT",
            "VLLM_MAX_AUDIO_DECODE_DURATION_S",
            "VLLM_MAX_IMAGE_PIXELS",
            "VLLM_MEDIA_CONNECTOR",
            "VLLM_VIDEO_LOADER_BACKEND",
        ),
    ),
    Entry(
        _CACHE,
        "EncoderCacheManager.create_manager",
        used_by=_COUNTING,
        why="makes our cache manager in the scheduler",
        parameters=("cache_size", "vllm_config"),
        overrides=True,
    ),
    Entry(
        _CACHE,
        "EncoderCacheManager.__init__",
        used_by=_COUNTING,
        why="base class of our cache manager",
        parameters=("cache_size",),
    ),
    Entry(
        _CACHE,
        "EncoderCacheManager.check_and_update_cache",
        used_by=_COUNTING,
        why="hits are counted",
        parameters=("request", "input_id"),
        overrides=True,
    ),
    Entry(
        _CACHE,
        "EncoderCacheManager.allocate",
        used_by=_COUNTING,
        why="misses are counted",
        parameters=("request", "input_id"),
        overrides=True,
    ),
    Entry(
        _CACHE,
        "EncoderCacheManager",
        used_by=_COUNTING,
        why="media that a request has met before: a hit counts once",
        attributes=("request_cached_ids",),
    ),
    Entry(
        ("vllm.v1.request",),
        "Request.get_num_encoder_embeds",
        used_by=_COUNTING,
        why="tokens of a medium",
        parameters=("input_id",),
    ),
    Entry(
        ("vllm.config.ec_manager_config",),
        "EncoderCacheManagerConfig",
        used_by=_DEFAULTS,
        why="where the cache manager's class is named",
        attributes=("encoder_cache_manager_cls",),
    ),
)
