"""MiMo-V2.5's audio tower for vLLM: vLLM's class, made to run and to be found everywhere.

Replaced are the tokenizer's attention (vLLM's needs FlashAttention), the way its folder is found
(vLLM looks in local folders only, and drops audio for a model named by its hub name), its dtype
(vLLM's is bfloat16 always) and its batching: recordings are encoded one by one, because the
convolutions over a padded batch let one recording's length change another's codes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from vllm.model_executor.models.mimo_audio import (
    AudioEncoderAttention,
    MimoAudioEncoder,
    MiMoAudioTokenizer,
    apply_rotary_pos_emb,
    tokenize_audio_batch,
)

from vllm_mimo.attention.window import window_attention
from vllm_mimo.checkpoints.weights import CheckpointError, summarize

FLASH_DTYPES = (torch.float16, torch.bfloat16)


class TokenizerAttention(AudioEncoderAttention):
    """Attention of the audio tokenizer on any device and in any dtype."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_seqlen: int,
        rope_position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """hidden_states (frames, d_model) of sequences one after the other -> the same shape."""
        if hidden_states.is_cuda and hidden_states.dtype in FLASH_DTYPES:
            return super().forward(hidden_states, cu_seqlens, max_seqlen, rope_position_embeddings)
        q, k, v = (
            project(hidden_states).unflatten(-1, (self.num_heads, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if rope_position_embeddings is not None:
            q, k = apply_rotary_pos_emb(q, k, *rope_position_embeddings)
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        left = self.window_size[0]
        if left > 0:
            right = 0 if self.causal else left
            attended = window_attention(q, k, v, lengths, left, right, self.head_dim**-0.5)
        else:
            parts = (x.transpose(0, 1).split(lengths, dim=1) for x in (q, k, v))
            attended = torch.cat(
                [
                    F.scaled_dot_product_attention(*part, is_causal=self.causal)
                    for part in zip(*parts, strict=True)
                ],
                dim=1,
            ).transpose(0, 1)
        return self.out_proj(attended.flatten(1))


def load_tokenizer(folder: Path) -> MiMoAudioTokenizer:
    """The audio tokenizer of a checkpoint, in torch's default dtype and on its default device.

    Raises CheckpointError naming tensors of its encoder that the folder lacks.
    """
    config = MiMoAudioTokenizer.config_class(**json.loads((folder / "config.json").read_text()))
    tokenizer = MiMoAudioTokenizer(config)
    weights = folder / "model.safetensors"
    if weights.is_file():
        state = load_file(weights)
    else:
        state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    lacking, _ = tokenizer.load_state_dict(state, strict=False)  # a decoder may be there as well
    unused = ("inited", "cluster_size", "embed_avg")  # what training leaves beside the codebooks
    lacking = [name for name in lacking if not name.endswith(unused)]
    if lacking:
        raise CheckpointError(f"'{folder}' lacks {len(lacking)} tensor(s): {summarize(lacking)}")
    for layer in tokenizer.encoder.layers:
        # A layer makes its attention itself and takes no class for it.
        layer.self_attn.__class__ = TokenizerAttention
    tokenizer.to(device=torch.get_default_device(), dtype=torch.get_default_dtype())
    return tokenizer.eval().requires_grad_(False)


class MimoAudioTower(MimoAudioEncoder):
    """Log-mel spectrograms to embeddings of the language model's width."""

    def __init__(self, audio_config: Any, folder: Path | None) -> None:
        super().__init__(audio_config, model_path="")
        # Only embeddings go in: the checkpoint has no table for it.
        self.input_local_transformer.embed_tokens = None
        self.audio_tokenizer = load_tokenizer(folder) if folder is not None else None

    def embed(self, mel: torch.Tensor) -> torch.Tensor:
        """mel (frames, n_mels) of one recording -> (tokens, out_hidden_size)."""
        embedded, _ = self.get_audio_feature([mel])
        return embedded

    def codes(self, mel: torch.Tensor) -> torch.Tensor:
        """mel (frames, n_mels) of one recording -> its codes (code frames, channels)."""
        assert self.audio_tokenizer is not None, "a request with audio passed a model without"
        return tokenize_audio_batch(
            [mel], self.audio_tokenizer.encoder, segment_size=self.audio_segment_size
        )[0]

    def get_audio_feature(self, mel_specs: list[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """Each (frames, n_mels) -> (all tokens, out_hidden_size), and the tokens of each."""
        groups = [self.process_audio(self.codes(mel)) for mel in mel_specs]
        embeddings = self.apply_speech_embeddings(torch.cat(groups))
        hidden = self.apply_input_local_transformer(embeddings)
        return self.projection(hidden.flatten(1)), [len(group) for group in groups]
