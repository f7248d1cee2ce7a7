"""What a tiny config.json says about pictures and sound: every field of V2.5's, in small sizes."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

CHANNELS = 20
_CODEBOOKS = [64, 64, 32, *[16] * (CHANNELS - 3)]
"""A sixteenth of the real sizes, or an eighth for the small ones."""
_NO_CODE = 64
"""The code that stands for nothing, as 1,024 in the real model."""

_VISION: dict[str, Any] = {
    "depth": 6,
    "fullatt_block_indexes": [0, 5],
    "hidden_act": "silu",
    "hidden_size": 64,
    "in_chans": 3,
    "intermediate_size": 128,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "num_query_groups": 2,
    "out_hidden_size": None,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "spatial_patch_size": 16,
    "temporal_patch_size": 2,
    "tokens_per_second": 2,
    "use_sink": True,
    "visual_token_window_size": 64,
    "vit_window_attn_types": [-1, 0, 0, 1, 1, -1],
    "window_size": 128,
}

_AUDIO: dict[str, Any] = {
    "add_post_norm": True,
    "audio_channels": CHANNELS,
    "audio_segment_size": 6000,
    "group_size": 4,
    "input_full_attention": True,
    "input_local_attn_heads": 2,
    "input_local_dim": 32,
    "input_local_head_dim": 16,
    "input_local_hidden_dropout": 0.0,
    "input_local_intermediate_size": 64,
    "input_local_layers": 2,
    "out_hidden_size": None,
    "partial_rotary_factor": 1.0,
    "projection_layers": 2,
    "rope_theta": 640000,
    "speech_vocab_size": "80",
    "speech_zeroemb_idx": str(_NO_CODE),
}

_PROCESSOR: dict[str, Any] = {
    "audio_avg_pooler": 2,
    "audio_channels": CHANNELS,
    "audio_end_token_id": "<|mimo_audio_end|>",
    "audio_fmax": None,
    "audio_fmin": 0,
    "audio_group_size": 4,
    "audio_hop_length": 240,
    "audio_input_id_per_second": 25.0,
    "audio_kernel_size": 3,
    "audio_n_mels": 128,
    "audio_nfft": 960,
    "audio_sampling_rate": 24000,
    "audio_segment_size": 6000,
    "audio_start_token_id": "<|mimo_audio_start|>",
    "audio_stride_size": 2,
    "audio_token_id": "<|audio_pad|>",
    "audio_window_size": 960,
    "audio_zeroemb_idx": [_NO_CODE] * CHANNELS,
    "fps": 1.0,
    "image_max_pixels": 1048576,
    "image_min_pixels": 8192,
    "image_token_id": "<|image_pad|>",
    "max_frames": 64,
    "merge_size": 2,
    "min_frames": None,
    "num_frames": None,
    "pad_token_id": "<|endoftext|>",
    "patch_size": 16,
    "rope_type": "rope",
    "temporal_compression_ratio": 1,
    "temporal_patch_size": 2,
    "use_per_grid_t_timestamps": False,
    "use_video_timestamps": True,
    "video_audio_interleave_length": 0.0,
    "video_end_token_id": "<|mimo_video_end|>",
    "video_max_pixels": 262144,
    "video_min_pixels": 8192,
    "video_process_num_threads": 16,
    "video_start_token_id": "<|mimo_video_start|>",
    "video_token_id": "<|video_pad|>",
    "video_tokens_per_second": 2,
    "video_total_max_pixels": 4194304,
    "vision_end_token_id": "<|vision_end|>",
    "vision_start_token_id": "<|vision_start|>",
}

TOKENIZER_CONFIG: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 4,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "encoder_skip_layer_id": 3,
    "encoder_causal": True,
    "encoder_attn_window_size": [128, 0],
    "hybrid_attention": True,
    "hybrid_block_size": 8,
    "swa_per_block": 2,
    "kernel_size": 3,
    "stride_size": 2,
    "avg_pooler": 2,
    "rope_theta": 10000,
    "n_mels": 128,
    "nfft": 960,
    "hop_length": 240,
    "window_size": 960,
    "sampling_rate": 24000,
    "fmin": 0,
    "fmax": None,
    "num_quantizers": CHANNELS,
    "codebook_size": _CODEBOOKS,
    "ln_type": "LayerNorm",
    "activation_function": "gelu",
}
"""config.json in `audio_tokenizer/`: the fields of its encoder."""


def media_sections(hidden_size: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields that a config.json with towers has beside those of the text model.

    Args:
        hidden_size: of the text model, which is the width of what the towers give.
        tokenizer: knows the ids of the special tokens.
    """
    ids = {
        name: tokenizer.token_to_id(value)
        for name, value in _PROCESSOR.items()
        if name.endswith("_token_id")
    }
    return {
        "vision_model_type": "mimovl",
        "vision_config": {**_VISION, "out_hidden_size": hidden_size},
        "audio_config": {**_AUDIO, "out_hidden_size": hidden_size},
        "processor_config": {**_PROCESSOR, **ids},
    }
