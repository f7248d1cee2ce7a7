"""The audio tokenizer's encoder: its shape, from the config.json of its own, and its tensors.

Source: the tokenizer's classes in the hub's modelling code of MiMo-V2.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_mimo.checkpoints.geometry import GeometryError
from vllm_mimo.checkpoints.schema import TensorSpec
from vllm_mimo.checkpoints.towers import AudioGeometry, linear, spec


@dataclass(frozen=True, slots=True)
class TokenizerGeometry:
    """From log-mel spectrograms to codes. Build it with `from_config`."""

    n_mels: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    skip_layer: int | None
    """Layers whose result is added to the last one's; None for no such connection."""
    causal: bool
    windows: tuple[int | None, ...]
    """Per layer: earlier frames that a frame sees beside itself; None for all of them."""
    kernel_size: int
    stride: int
    """Mel frames in one frame of the transformer."""
    pool: int
    """Frames of the transformer in one code frame; 1 for no pooling."""
    rope_theta: float
    codebook_sizes: tuple[int, ...]
    """Entries of each codebook, in the order in which they refine a frame."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def frames(self, mel_frames: int) -> int:
        """Frames of the transformer for a segment of `mel_frames`."""
        return (mel_frames + 5 - 2 * self.kernel_size) // self.stride + 1

    def code_frames(self, mel_frames: int) -> int:
        """Code frames of a segment of `mel_frames`."""
        return -(-self.frames(mel_frames) // self.pool)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TokenizerGeometry:
        """Read the config.json in `audio_tokenizer/`.

        Raises GeometryError naming the field that is missing or wrong.
        """

        def need(name: str) -> Any:
            if config.get(name) is None:
                raise GeometryError(f"config field '{name}' of the audio tokenizer is missing")
            return config[name]

        if config.get("ln_type", "LayerNorm") != "LayerNorm":
            raise GeometryError(
                f"config field 'ln_type' of the audio tokenizer is '{config['ln_type']}', "
                "which no known model has"
            )
        layers, quantizers = int(need("encoder_layers")), int(need("num_quantizers"))
        skip = config.get("encoder_skip_layer_id")
        return cls(
            n_mels=int(need("n_mels")),
            hidden_size=int(need("d_model")),
            intermediate_size=int(need("encoder_ffn_dim")),
            num_layers=layers,
            num_heads=int(need("encoder_attention_heads")),
            skip_layer=None if skip is None else int(skip),
            causal=bool(config.get("encoder_causal", False)),
            windows=_windows(config, layers),
            kernel_size=int(config.get("kernel_size", 3)),
            stride=int(config.get("stride_size", 2)),
            pool=int(config.get("avg_pooler", 1)),
            rope_theta=float(config.get("rope_theta", 10_000)),
            codebook_sizes=_codebook_sizes(need("codebook_size"), quantizers),
        )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    left = int((config.get("encoder_attn_window_size") or [-1])[0])
    window = left if left > 0 else None
    if not config.get("hybrid_attention", False):
        return (window,) * layers
    block = int(config.get("swa_per_block", 2))
    return tuple(None if i % block == block - 1 else window for i in range(layers))


def _codebook_sizes(value: Any, quantizers: int) -> tuple[int, ...]:
    sizes = [value] if isinstance(value, int) else list(value)
    sizes += sizes[-1:] * (quantizers - len(sizes))
    return tuple(int(size) for size in sizes[:quantizers])


def check_fit(config: Mapping[str, Any], audio: AudioGeometry) -> None:
    """Raise GeometryError when the tokenizer's codes are not what the audio tower embeds."""
    sizes = TokenizerGeometry.from_config(config).codebook_sizes
    if len(sizes) < audio.channels:
        raise GeometryError(
            f"the audio tokenizer has {len(sizes)} codebooks, "
            f"'audio_config.audio_channels' is {audio.channels}"
        )
    for channel, (size, rows) in enumerate(zip(sizes, audio.vocab_sizes, strict=False)):
        if size > rows:
            raise GeometryError(
                f"codebook {channel} of the audio tokenizer has {size} entries, "
                f"'audio_config.speech_vocab_size' has {rows}"
            )


def tokenizer_tensors(config: Mapping[str, Any]) -> Iterator[TensorSpec]:
    """Every tensor of the encoder, under the names in `audio_tokenizer/model.safetensors`.

    Real folders may hold a decoder as well. Of a codebook only `embed` is needed: the rest is what
    its training kept.
    """
    geo = TokenizerGeometry.from_config(config)
    hidden, kernel = geo.hidden_size, geo.kernel_size
    yield spec("encoder.conv1.weight", hidden, geo.n_mels, kernel)
    yield spec("encoder.conv1.bias", hidden)
    yield spec("encoder.conv2.weight", hidden, hidden, kernel)
    yield spec("encoder.conv2.bias", hidden)
    for layer in range(geo.num_layers):
        prefix = f"encoder.layers.{layer}"
        yield from linear(f"{prefix}.self_attn_layer_norm", hidden)
        yield from linear(f"{prefix}.self_attn.q_proj", hidden, hidden)
        yield spec(f"{prefix}.self_attn.k_proj.weight", hidden, hidden)
        yield from linear(f"{prefix}.self_attn.v_proj", hidden, hidden)
        yield from linear(f"{prefix}.self_attn.out_proj", hidden, hidden)
        yield from linear(f"{prefix}.final_layer_norm", hidden)
        yield from linear(f"{prefix}.fc1", geo.intermediate_size, hidden)
        yield from linear(f"{prefix}.fc2", hidden, geo.intermediate_size)
    yield from linear("encoder.layer_norm", hidden)
    if geo.pool != 1:
        yield spec("encoder.down_sample_layer.0.weight", hidden, hidden, geo.pool)
        yield from linear("encoder.down_sample_norm", hidden)
    for i, size in enumerate(geo.codebook_sizes):
        prefix = f"encoder.quantizer.vq.layers.{i}._codebook"
        yield spec(f"{prefix}.embed", size, hidden)
        for name, shape in (
            ("inited", (1,)),
            ("cluster_size", (size,)),
            ("embed_avg", (size, hidden)),
        ):
            yield TensorSpec(f"{prefix}.{name}", (shape,), "f32", optional=True)
