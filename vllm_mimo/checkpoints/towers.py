"""Shapes of the vision and audio towers, from config.json, and the tensors that they consist of.

Sources: the config and weight table of MiMo-V2.5, and the hub's modelling code for defaults of
fields that the config leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vllm_mimo.checkpoints.geometry import GeometryError, TextGeometry
from vllm_mimo.checkpoints.schema import TensorSpec, ignored_modules, text_tensors

WindowOrder = Literal["row", "column"]


@dataclass(frozen=True, slots=True)
class VisionGeometry:
    """The vision tower's shape. Build it with `from_config`."""

    hidden_size: int
    intermediate_size: int
    out_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Width of every head: the config's `qk_channels`, which the real one leaves at its default."""
    in_channels: int
    patch_size: int
    """Pixels on a side of a patch."""
    temporal_patch_size: int
    """Frames in a patch."""
    merge_size: int
    """Patches on a side of one token."""
    window: int
    """Patches that a windowed block sees on either side; 0 or less for all of them."""
    full: tuple[bool, ...]
    """Per block: whether it sees every patch of its picture (`fullatt_block_indexes`)."""
    order: tuple[WindowOrder, ...]
    """Per block: whether merge units stand in row order or column by column."""
    use_sink: bool
    """Whether blocks that are not `full` have a learned bias for the first key."""
    norm_eps: float = 1e-6

    @property
    def depth(self) -> int:
        return len(self.full)

    @property
    def patch_width(self) -> int:
        """Numbers in one flattened patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    def has_sink(self, block: int) -> bool:
        """Whether block `block` has sinks."""
        return self.use_sink and not self.full[block]

    @classmethod
    def from_config(cls, config: Any) -> VisionGeometry | None:
        """Read `vision_config` of a config.json dict or a `transformers` config object.

        Returns:
            None for a model without a vision tower.

        Raises GeometryError naming the field that is missing or wrong.
        """
        section = _Section.of(config, "vision_config")
        if section is None:
            return None
        depth = section.integer("depth")
        types = section.get("vit_window_attn_types") or [-1] * depth
        if len(types) != depth:
            raise GeometryError(
                f"config field 'vision_config.vit_window_attn_types' has {len(types)} entries, "
                f"'depth' is {depth}"
            )
        full = set(section.get("fullatt_block_indexes") or ())
        heads = section.integer("num_heads")
        kv_heads = section.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise GeometryError(
                f"the vision tower has {heads} query heads, "
                f"not a multiple of its {kv_heads} KV heads"
            )
        return cls(
            hidden_size=section.integer("hidden_size"),
            intermediate_size=section.integer("intermediate_size"),
            out_hidden_size=section.integer("out_hidden_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=section.integer("qk_channels", 64),
            in_channels=int(section.get("in_channels") or section.get("in_chans") or 3),
            patch_size=section.integer("patch_size"),
            temporal_patch_size=section.integer("temporal_patch_size"),
            merge_size=section.integer("spatial_merge_size", 2),
            window=section.integer("visual_token_window_size", -1),
            full=tuple(block in full for block in range(depth)),
            order=tuple("column" if kind == 1 else "row" for kind in types),
            use_sink=bool(section.get("use_sink", False)),
            norm_eps=float(section.get("rms_norm_eps") or 1e-6),
        )


@dataclass(frozen=True, slots=True)
class AudioGeometry:
    """Shape of what turns audio codes into embeddings. Build it with `from_config`."""

    channels: int
    """Codes per code frame, one from each codebook of the tokenizer."""
    vocab_sizes: tuple[int, ...]
    """Rows of each channel's embedding table."""
    group_size: int
    """Code frames that become one token."""
    segment_size: int
    """Mel frames that the tokenizer encodes as one sequence."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    rope_theta: float
    rotary_factor: float
    causal: bool
    post_norm: bool
    projection_layers: int
    """1: one matrix; 2: two of them with GELU between."""
    out_hidden_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @classmethod
    def from_config(cls, config: Any) -> AudioGeometry | None:
        """Read `audio_config` of a config.json dict or a `transformers` config object.

        Returns:
            None for a model without an audio tower.

        Raises GeometryError naming the field that is missing or wrong.
        """
        section = _Section.of(config, "audio_config")
        if section is None:
            return None
        channels, hidden = section.integer("audio_channels"), section.integer("input_local_dim")
        heads = section.integer("input_local_attn_heads")
        if heads * section.integer("input_local_head_dim", hidden // heads) != hidden:
            raise GeometryError(
                f"config field 'audio_config.input_local_dim' is {hidden}, "
                f"not its {heads} heads times their width"
            )
        sizes = _per_channel(section.need("speech_vocab_size"))
        if len(sizes) not in (1, channels):
            raise GeometryError(
                f"config field 'audio_config.speech_vocab_size' has {len(sizes)} entries, "
                f"'audio_channels' is {channels}"
            )
        projection_layers = section.integer("projection_layers", 2)
        if projection_layers not in (1, 2):
            raise GeometryError(
                f"config field 'audio_config.projection_layers' is {projection_layers}, not 1 or 2"
            )
        return cls(
            channels=channels,
            vocab_sizes=sizes * channels if len(sizes) == 1 else sizes,
            group_size=section.integer("group_size"),
            segment_size=section.integer("audio_segment_size", 6000),
            hidden_size=hidden,
            intermediate_size=section.integer("input_local_intermediate_size"),
            num_layers=section.integer("input_local_layers"),
            num_heads=heads,
            rope_theta=float(section.get("rope_theta", 640_000)),
            rotary_factor=float(section.get("partial_rotary_factor", 1.0)),
            causal=not section.get("input_full_attention", True),
            post_norm=bool(section.get("add_post_norm", True)),
            projection_layers=projection_layers,
            out_hidden_size=section.integer("out_hidden_size"),
        )


class _Section:
    """Fields of one section of a config, which may be a dict or an object, in either of them."""

    def __init__(self, name: str, fields: Any) -> None:
        self.name = name
        self.get: Callable[..., Any] = (
            fields.get
            if isinstance(fields, Mapping)
            else lambda field, default=None: getattr(fields, field, default)
        )

    @classmethod
    def of(cls, config: Any, name: str) -> _Section | None:
        found = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        return cls(name, found) if found else None

    def need(self, field: str) -> Any:
        value = self.get(field)
        if value is None:
            raise GeometryError(f"config field '{self.name}.{field}' is missing")
        return value

    def integer(self, field: str, default: int | None = None) -> int:
        value = self.get(field)
        if value is None:
            value = self.need(field) if default is None else default
        return int(value)


def _per_channel(value: Any) -> tuple[int, ...]:
    """ "1280" or "1025-129-129": one number for all channels, or one for each."""
    return tuple(int(part) for part in str(value).split("-"))


def vision_tensors(geometry: VisionGeometry) -> Iterator[TensorSpec]:
    """Every tensor of the vision tower (`visual.`), in block order."""
    geo = geometry
    hidden, inner = geo.hidden_size, geo.intermediate_size
    merged = hidden * geo.merge_size**2
    patch = (geo.temporal_patch_size, geo.patch_size, geo.patch_size)
    yield spec("visual.patch_embed.proj.weight", hidden, geo.in_channels, *patch)
    for block in range(geo.depth):
        prefix = f"visual.blocks.{block}"
        yield spec(f"{prefix}.norm1.weight", hidden)
        rows = (geo.num_heads + 2 * geo.num_kv_heads) * geo.head_dim
        yield from linear(f"{prefix}.attn.qkv", rows, hidden)
        yield from linear(f"{prefix}.attn.proj", hidden, geo.num_heads * geo.head_dim)
        if geo.has_sink(block):
            yield spec(f"{prefix}.attn.sinks", geo.num_heads)
        yield spec(f"{prefix}.norm2.weight", hidden)
        yield from linear(f"{prefix}.mlp.gate_proj", inner, hidden)
        yield from linear(f"{prefix}.mlp.up_proj", inner, hidden)
        yield from linear(f"{prefix}.mlp.down_proj", hidden, inner)
    yield spec("visual.merger.ln_q.weight", hidden)
    yield spec("visual.merger.mlp.0.weight", merged, merged)
    yield spec("visual.merger.mlp.2.weight", geo.out_hidden_size, merged)


def audio_tensors(geometry: AudioGeometry) -> Iterator[TensorSpec]:
    """Every tensor of the code embeddings (`speech_embeddings.`) and of `audio_encoder.`."""
    geo = geometry
    hidden, inner = geo.hidden_size, geo.intermediate_size
    for channel, size in enumerate(geo.vocab_sizes):
        yield spec(f"speech_embeddings.{channel}.weight", size, hidden)
    local = "audio_encoder.input_local_transformer"
    for layer in range(geo.num_layers):
        prefix = f"{local}.layers.{layer}"
        yield spec(f"{prefix}.input_layernorm.weight", hidden)
        for part in "qkv":
            yield from linear(f"{prefix}.self_attn.{part}_proj", hidden, hidden)
        yield spec(f"{prefix}.self_attn.o_proj.weight", hidden, hidden)
        yield spec(f"{prefix}.post_attention_layernorm.weight", hidden)
        yield spec(f"{prefix}.mlp.gate_proj.weight", inner, hidden)
        yield spec(f"{prefix}.mlp.up_proj.weight", inner, hidden)
        yield spec(f"{prefix}.mlp.down_proj.weight", hidden, inner)
    if geo.post_norm:
        yield spec(f"{local}.norm.weight", hidden)
    grouped, out = geo.group_size * hidden, geo.out_hidden_size
    if geo.projection_layers == 1:
        yield spec("audio_encoder.projection.weight", out, grouped)
    else:
        yield spec("audio_encoder.projection.mlp.0.weight", 4 * grouped, grouped)
        yield spec("audio_encoder.projection.mlp.2.weight", out, 4 * grouped)


def all_tensors(config: Any) -> Iterator[TensorSpec]:
    """Every tensor of a checkpoint: text, MTP layers and the towers that its config has.

    The audio tokenizer is not among them: it is a checkpoint of its own in `audio_tokenizer/`.

    Args:
        config: a config.json dict or a `transformers` config object.

    Raises GeometryError naming the field that is missing or wrong.
    """
    quantization = config
    if not isinstance(config, Mapping):
        quantization = {"quantization_config": getattr(config, "quantization_config", None)}
    yield from text_tensors(TextGeometry.from_config(config), ignored_modules(quantization))
    vision, audio = VisionGeometry.from_config(config), AudioGeometry.from_config(config)
    if vision is not None:
        yield from vision_tensors(vision)
    if audio is not None:
        yield from audio_tensors(audio)


def spec(name: str, *shape: int) -> TensorSpec:
    """One bf16 tensor."""
    return TensorSpec(name, (shape,), "bf16")


def linear(module: str, *shape: int) -> Iterator[TensorSpec]:
    """Weight and bias of a linear layer (rows, columns) or of a norm (width)."""
    yield spec(f"{module}.weight", *shape)
    yield spec(f"{module}.bias", shape[0])
