"""The omni model and its towers: what our classes derive from and reach into."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_OMNI = ("vllm.model_executor.models.mimo_v2_omni",)
_AUDIO = ("vllm.model_executor.models.mimo_audio",)
_MODEL = "vllm_mimo.models.omni"
_VISION_TOWER = "vllm_mimo.models.vision"
_AUDIO_TOWER = "vllm_mimo.models.audio"

_OMNI_ENTRIES = (
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM.__init__",
        used_by=_MODEL,
        why="base class of the omni model, and what serves when the plugin is off",
        parameters=("vllm_config", "prefix"),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM.load_weights",
        used_by=_MODEL,
        why="tensors are checked on their way in, towers included",
        parameters=("weights",),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM.embed_multimodal",
        used_by=_MODEL,
        why="embeddings of each item, one tensor a video with its sound inside",
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM._process_image_input",
        used_by=_MODEL,
        why="pictures pass the tower in slices; embeddings that a user sends are left to vLLM",
        parameters=("image_input",),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM._mark_tower_model",
        used_by=_MODEL,
        why="towers are left out where a user allows no items of their kind",
        parameters=("vllm_config", "modalities"),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM._mark_language_model",
        used_by=_MODEL,
        why="the text model is left out of encode-only instances",
        parameters=("vllm_config",),
    ),
    Entry(
        _OMNI,
        "MiMoV2OmniForCausalLM",
        used_by=_MODEL,
        why="what vLLM's methods look for on the model, and those of them that we call",
        attributes=(
            "_parse_and_validate_image_input",
            "audio_encoder",
            "compute_logits",
            "config",
            "forward",
            "hf_to_vllm_mapper",
            "language_model",
            "make_empty_intermediate_tensors",
            "visual",
        ),
    ),
    Entry(
        ("vllm.transformers_utils.configs.mimo_v2_omni",),
        "Mimo_VLVisionConfig",
        used_by=_MODEL,
        why="defaults of what a checkpoint's vision_config leaves out",
        attributes=("hidden_size", "kv_channels", "qk_channels", "visual_token_window_size"),
    ),
)

_VISION_ENTRIES = (
    Entry(
        _OMNI,
        "MiMoVisionTransformer.__init__",
        used_by=_VISION_TOWER,
        why="base class of the vision tower",
        parameters=("vision_cfg", "norm_eps", "quant_config", "prefix"),
    ),
    Entry(
        _OMNI,
        "MiMoVisionTransformer.rot_pos_emb",
        used_by=_VISION_TOWER,
        why="rotary tables in float32, for pictures of any size",
        parameters=("grid_thw",),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoVisionTransformer.forward",
        used_by=_VISION_TOWER,
        why="patches of a slice to embeddings",
        parameters=("x", "grid_thw"),
    ),
    Entry(
        _OMNI,
        "MiMoVisionTransformer",
        used_by=_VISION_TOWER,
        why="parts that are replaced, and sizes",
        attributes=(
            "blocks",
            "device",
            "dtype",
            "merger",
            "spatial_merge_size",
            "spatial_merge_unit",
        ),
    ),
    Entry(
        _OMNI,
        "MiMoVisionPatchMerger",
        used_by=_VISION_TOWER,
        why="its norm is replaced",
        attributes=("ln_q",),
    ),
    Entry(
        _OMNI,
        "MiMoVisionBlock",
        used_by=_VISION_TOWER,
        why="its attention becomes ours",
        attributes=("attn",),
    ),
    Entry(
        _OMNI,
        "MiMoVisionAttention._forward_window_attn",
        used_by=_VISION_TOWER,
        why="windowed attention without a Triton kernel",
        parameters=("q", "k", "v", "cu_seqlens", "max_seqlen"),
        overrides=True,
    ),
    Entry(
        _OMNI,
        "MiMoVisionAttention",
        used_by=_VISION_TOWER,
        why="this rank's heads and their sinks, and parts that are replaced",
        attributes=(
            "apply_rotary_emb",
            "num_heads_per_partition",
            "scale",
            "sinks",
            "tp_rank",
            "tp_size",
            "visual_token_window_size",
        ),
    ),
    Entry(
        ("vllm.model_executor.layers.rotary_embedding.common",),
        "ApplyRotaryEmb.__init__",
        used_by=_VISION_TOWER,
        why="rotation in float32, as the reference does",
        parameters=("enforce_enable", "enable_fp32_compute"),
    ),
)

_AUDIO_ENTRIES = (
    Entry(
        _AUDIO,
        "MimoAudioEncoder.__init__",
        used_by=_AUDIO_TOWER,
        why="base class of the audio tower; an empty path leaves the tokenizer to us",
        parameters=("config", "model_path"),
    ),
    Entry(
        _AUDIO,
        "MimoAudioEncoder.get_audio_feature",
        used_by=_AUDIO_TOWER,
        why="recordings are encoded one by one",
        parameters=("mel_specs",),
        overrides=True,
    ),
    Entry(
        _AUDIO,
        "MimoAudioEncoder.process_audio",
        used_by=_AUDIO_TOWER,
        why="codes to groups",
        parameters=("audio",),
    ),
    Entry(
        _AUDIO,
        "MimoAudioEncoder.apply_speech_embeddings",
        used_by=_AUDIO_TOWER,
        why="codes to summed embeddings",
        parameters=("audio_codes",),
    ),
    Entry(
        _AUDIO,
        "MimoAudioEncoder.apply_input_local_transformer",
        used_by=_AUDIO_TOWER,
        why="attention within a group",
        parameters=("speech_embeddings",),
    ),
    Entry(
        _AUDIO,
        "MimoAudioEncoder",
        used_by=_AUDIO_TOWER,
        why="parts of the tower",
        attributes=(
            "audio_segment_size",
            "audio_tokenizer",
            "input_local_transformer",
            "projection",
        ),
    ),
    Entry(
        _AUDIO,
        "MiMoAudioTokenizer.__init__",
        used_by=_AUDIO_TOWER,
        why="the audio tokenizer, which comes from a folder of its own",
        parameters=("config",),
    ),
    Entry(
        _AUDIO,
        "MiMoAudioTokenizer",
        used_by=_AUDIO_TOWER,
        why="class of its config, and the half of it that is used",
        attributes=("config_class", "encoder"),
    ),
    Entry(
        _AUDIO,
        "AudioEncoder",
        used_by=_AUDIO_TOWER,
        why="layers of the tokenizer",
        attributes=("layers",),
    ),
    Entry(
        _AUDIO,
        "AudioEncoderTransformerLayer",
        used_by=_AUDIO_TOWER,
        why="its attention becomes ours",
        attributes=("self_attn",),
    ),
    Entry(
        _AUDIO,
        "AudioEncoderAttention.forward",
        used_by=_AUDIO_TOWER,
        why="attention without FlashAttention",
        parameters=("hidden_states", "cu_seqlens", "max_seqlen", "rope_position_embeddings"),
        overrides=True,
    ),
    Entry(
        _AUDIO,
        "AudioEncoderAttention",
        used_by=_AUDIO_TOWER,
        why="shapes and projections of a layer",
        attributes=(
            "causal",
            "head_dim",
            "k_proj",
            "num_heads",
            "out_proj",
            "q_proj",
            "v_proj",
            "window_size",
        ),
    ),
    Entry(
        _AUDIO,
        "apply_rotary_pos_emb",
        used_by=_AUDIO_TOWER,
        why="rotation of queries and keys",
        parameters=("q", "k", "cos", "sin"),
    ),
    Entry(
        _AUDIO,
        "tokenize_audio_batch",
        used_by=_AUDIO_TOWER,
        why="log-mel to codes, in segments",
        parameters=("mels", "audio_tokenizer_encoder", "segment_size"),
    ),
)

TOWER_ENTRIES = (*_OMNI_ENTRIES, *_VISION_ENTRIES, *_AUDIO_ENTRIES)
