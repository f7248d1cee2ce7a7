"""What vLLM asks about a model's media: limits, dummies for profiling, and parsers."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_OMNI = ("vllm.model_executor.models.mimo_v2_omni",)
_PARSE = ("vllm.multimodal.parse",)
_PROCESSING = ("vllm.multimodal.processing",)
_MODEL = "vllm_mimo.models.omni"
_INFO = "vllm_mimo.multimodal.info"
_DUMMY = "vllm_mimo.multimodal.dummy"
_PARSER = "vllm_mimo.multimodal.parser"
_PROCESSOR = "vllm_mimo.multimodal.processor"

_MODEL_ENTRIES = (
    Entry(
        ("vllm.multimodal",),
        "MULTIMODAL_REGISTRY.register_processor",
        used_by=_MODEL,
        why="how a model class names what prepares its media",
        parameters=("processor", "info", "dummy_inputs"),
    ),
    Entry(
        _PROCESSING,
        "InputProcessingContext",
        used_by=_INFO,
        why="the model's config, all that is handed on to where media are prepared",
        attributes=("get_hf_config", "get_merged_mm_kwargs", "model_config"),
    ),
    Entry(
        _PROCESSING,
        "InputProcessingContext.get_merged_mm_kwargs",
        used_by=_PROCESSOR,
        why="options of a request over those of the server",
        parameters=("kwargs",),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniProcessingInfo.__init__",
        used_by=_INFO,
        why="base class of what is asked of a model; vLLM's own where the plugin is off",
        parameters=("ctx",),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniProcessingInfo",
        used_by=_INFO,
        why="what is asked of the base class",
        attributes=(
            "_get_expected_hidden_size",
            "allow_missing_mm_embeddings",
            "ctx",
            "get_hf_config",
            "get_tokenizer",
        ),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniProcessingInfo.get_supported_mm_limits",
        used_by=_INFO,
        why="a checkpoint without its audio tokenizer takes no audio",
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniProcessingInfo.get_data_parser",
        used_by=_INFO,
        why="our parser takes the place of vLLM's",
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniProcessingInfo.get_mm_max_tokens_per_item",
        used_by=_INFO,
        why="the encoder cache is sized by it",
        parameters=("seq_len", "mm_counts"),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniProcessingInfo.get_image_size_with_most_features",
        used_by=_DUMMY,
        why="the largest picture, for the memory profile",
        parameters=("max_pixels",),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniMultiModalProcessor.__init__",
        used_by=_MODEL,
        why="vLLM's own processor where the plugin is off",
        parameters=("info", "dummy_inputs"),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniDummyInputsBuilder.__init__",
        used_by=_MODEL,
        why="base class of our dummies, and vLLM's own where the plugin is off",
        parameters=("info",),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniDummyInputsBuilder",
        used_by=_DUMMY,
        why="a prompt with so many items",
        attributes=("get_dummy_text",),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniDummyInputsBuilder.get_dummy_mm_data",
        used_by=_DUMMY,
        why="the largest items that one forward of a tower takes",
        parameters=("seq_len", "mm_counts", "mm_options"),
        overrides=True,
    ),
)

_DUMMY_ENTRIES = (
    Entry(
        _PROCESSING,
        "BaseDummyInputsBuilder.__init__",
        used_by=_MODEL,
        why="what the registry takes as dummies",
        parameters=("info",),
    ),
    Entry(
        _PROCESSING,
        "BaseDummyInputsBuilder._get_dummy_images",
        used_by=_DUMMY,
        why="pictures of that size",
        parameters=("width", "height", "num_images", "overrides"),
    ),
    Entry(
        _PROCESSING,
        "BaseDummyInputsBuilder._get_dummy_videos",
        used_by=_DUMMY,
        why="videos of that size",
        parameters=("width", "height", "num_frames", "num_videos", "overrides"),
    ),
    Entry(
        _PROCESSING,
        "BaseDummyInputsBuilder._get_dummy_audios",
        used_by=_DUMMY,
        why="recordings of that length",
        parameters=("length", "num_audios", "overrides"),
    ),
    Entry(
        ("vllm.config.multimodal",),
        "MultiModalDummyOptions",
        used_by=_DUMMY,
        why="sizes that a user sets by --limit-mm-per-prompt, by kind",
        attributes=("get",),
    ),
    Entry(
        ("vllm.inputs",),
        "MultiModalDataDict",
        used_by=_DUMMY,
        why="type of what a user hands in, by kind",
    ),
)

_PARSER_ENTRIES = (
    Entry(
        _OMNI,
        "MiMoV2OmniMultiModalDataParser.__init__",
        used_by=_PARSER,
        why="base class of our parser",
        parameters=("spatial_merge_size",),
    ),
    Entry(
        _PARSE,
        "MultiModalDataParser.__init__",
        used_by=_PARSER,
        why="what our parser asks of it: the model's rate, mono, metadata with every video",
        parameters=(
            "target_sr",
            "target_channels",
            "video_needs_metadata",
            "expected_hidden_size",
            "allow_missing_mm_embeddings",
        ),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniMultiModalDataParser._get_video_with_metadata",
        used_by=_PARSER,
        why="every frame's time, whatever loaded it",
        parameters=("video",),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniMultiModalDataParser._parse_image_data",
        used_by=_PARSER,
        why="pictures that are too large are refused",
        parameters=("data",),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniMultiModalDataParser._get_audio_with_sr",
        used_by=_PARSER,
        why="audio that is empty or not finite is refused",
        parameters=("audio",),
        overrides=True,
    ),
    Entry(
        _PARSE,
        "ImageProcessorItems",
        used_by=_PARSER,
        why="pictures to look at, in contrast to embeddings",
        attributes=("data", "get", "get_image_size"),
    ),
    Entry(
        _PARSE,
        "ModalityDataItems",
        used_by=_PARSER,
        why="base class of both",
        attributes=("__len__",),
    ),
    Entry(
        _PARSE,
        "MultiModalDataItems",
        used_by=_PROCESSOR,
        why="what a parser gives, by kind",
    ),
    Entry(
        _PARSE,
        "ImageSize",
        used_by=_INFO,
        why="width and height of a picture",
        attributes=("width", "height"),
    ),
)

MEDIA_ENTRIES = (*_MODEL_ENTRIES, *_DUMMY_ENTRIES, *_PARSER_ENTRIES)
