"""The plugin's configuration: one frozen object, read once from vLLM's command line and the
environment.

Two sources, both optional: ``--additional-config '{"mimo": {...}}'`` of vLLM, and the variable
``VLLM_MIMO_CONFIG``, which holds the inner JSON object itself or the path of a file with it. Where
both name a key, vLLM's command line wins. To add a key, add a field to ``MimoConfig``: its
annotation is what is checked, its help is what ``docs/configuration.md`` shows.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_mimo.l3.settings import L3Settings
from vllm_mimo.value_types import describe_type, matches

ENV_VAR = "VLLM_MIMO_CONFIG"
"""Name of the environment variable: inline JSON object, or path of a JSON file."""

SECTION = "mimo"
"""Key of ``--additional-config`` under which the plugin's keys stand."""

CONFIG_ATTRIBUTE = "vllm_mimo"
"""Attribute of a model's `hf_config` that carries the keys to where vLLM hands on nothing else."""

LIMITS = {
    "max_image_pixels": (1, math.inf),
    "video_decode_threads": (1, math.inf),
    "swa_pool_fraction": (0.001, 0.95),
    "swa_pool_blocks": (2, math.inf),
    "swa_block_size": (1, math.inf),
    "tail_interval": (0, math.inf),
    "tail_dense_until": (0, math.inf),
    "shadow_fraction": (0.0, 1.0),
    "host_gib": (0.0, math.inf),
    "host_swa_fraction": (0.001, 0.95),
    "tier_backfill": (0, math.inf),
}
"""Smallest and largest value of the keys that are numbers."""

FROM_ENV = ENV_VAR
FROM_ARGS = f"--additional-config {SECTION}"
FROM_DEFAULT = "default"


class MimoConfigError(ValueError):
    """A key that does not exist, a value of the wrong type, or a source that cannot be read."""


def option(default: Any, help: str) -> Any:
    """A field of ``MimoConfig``: its default and the sentence that documents it."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class MimoConfig:
    """Everything a user can set. Fields may be bool, int, float, str, ``Literal`` of strings, or
    any of these ``| None``; ``__post_init__`` checks values against the annotations and raises
    MimoConfigError.
    """

    enabled: bool = option(
        True, "All of the plugin's behaviour on MiMo checkpoints; off leaves vLLM as it is."
    )
    api_defaults: bool = option(
        True,
        "Fill in the tool-call and reasoning parser flags of `vllm serve` for MiMo checkpoints.",
    )
    strict_checkpoint: bool = option(
        True, "Refuse checkpoints with missing, extra or misshapen tensors."
    )
    fp8_on_cpu: Literal["auto", "dequantize", "native"] = option(
        "auto", "How block-FP8 linear weights run on a CPU."
    )
    audio_in_video: bool = option(
        True, "Hear a video's sound track, between its pictures, where the checkpoint hears."
    )
    max_image_pixels: int = option(
        67_108_864, "Refuse images of more pixels, before they are decoded."
    )
    image_arithmetic: Literal["exact", "uint8"] = option(
        "exact",
        "How pictures and frames are resized: in float32 as in the reference, or in whole levels, "
        "which is faster (`docs/media.md`).",
    )
    video_decoder: Literal["pyav", "torchcodec", "decord", "nvdec"] = option(
        "pyav", "What decodes videos; others than PyAV have to be installed (`docs/media.md`)."
    )
    video_decode_threads: int | None = option(
        None,
        "Decoders that run at once in a process, for all its videos; null: one for each core that "
        "it may use.",
    )
    truncated_video: Literal["refuse", "keep"] = option(
        "refuse", "Refuse videos that are cut short, or show what is left of them and log it."
    )
    two_pools: bool = option(
        True, "Keep full-attention and SWA KV in two pools; off leaves vLLM's one pool."
    )
    swa_pool_fraction: float | None = option(
        None, "Share of the KV cache's bytes for the SWA pool; null chooses it."
    )
    swa_pool_blocks: int | None = option(
        None, "Blocks of the SWA pool, instead of a share of the bytes."
    )
    swa_block_size: int | None = option(
        None,
        "Tokens per SWA block; null: as many as in a full-attention block, which it must divide.",
    )
    bounded_replay: bool = option(
        True, "Resume without an SWA tail by a bounded replay; off cuts the hit to the last tail."
    )
    eviction: Literal["return_time", "lru"] = option(
        "return_time",
        "Which cached blocks are evicted first: those least likely to be asked for soon, or the "
        "least recently used.",
    )
    tail_interval: int = option(
        2048, "Tokens between the SWA tails that are kept near a prompt's start; 0 for none."
    )
    tail_dense_until: int = option(8192, "Tokens up to which 'tail_interval' applies.")
    prefix_hash: Literal["xxhash", "vllm"] = option(
        "xxhash",
        "Hash of prefix-cache blocks: 128-bit xxHash, whatever `--prefix-caching-hash-algo` says, "
        'or "vllm" for that flag (SHA-256 by default).',
    )
    shadow_fraction: float = option(
        0.0, "Share of greedy requests with a cache hit that are computed again to compare."
    )
    host_gib: float = option(
        0.0, "GiB of host memory a rank keeps KV in, below the device's pools; 0 for none."
    )
    host_swa_fraction: float | None = option(
        None, "Share of 'host_gib' for SWA blocks; null chooses it."
    )
    l3: dict[str, Any] | None = option(  # noqa: RUF009  as the others are
        None,
        "Settings of a third tier below host memory, on disk (`docs/tiers.md`); null for none.",
    )
    tier_keep_alive: bool = option(
        True, "Mark what upper tiers are asked for as used in the third tier too."
    )
    tier_layerwise: bool = option(
        True,
        "Let each layer wait for its own KV only while it is loaded; off loads all layers before "
        "a step.",
    )
    tier_ahead: bool = option(
        True, "Load the KV of the next request in the queue during the step before its own."
    )
    tier_backfill: int = option(
        64,
        "Most blocks a step copies to host memory because only the device holds them; 0 for none.",
    )

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not matches(value, hints[field.name]):
                raise MimoConfigError(
                    f"{SECTION} config: {field.name!r} must be {describe_type(hints[field.name])}, "
                    f"got {value!r} ({type(value).__name__})"
                )
        if self.l3 is not None:
            try:
                L3Settings.parse(self.l3)
            except ValueError as error:
                raise MimoConfigError(f"{SECTION} config: {error}") from None
        for key, (low, high) in LIMITS.items():
            value = getattr(self, key)
            if value is not None and not low <= value <= high:
                most = "or more" if high == math.inf else f"to {high:g}"
                raise MimoConfigError(
                    f"{SECTION} config: {key!r} must be {low:g} {most}, got {value!r}"
                )


def from_sources(
    additional_config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> MimoConfig:
    """The config in force.

    ``additional_config`` is vLLM's whole ``--additional-config`` object (other plugins' sections
    are ignored). Raises MimoConfigError, whose message names the source, the key and what is valid.
    """
    values: dict[str, Any] = {}
    for source, layer in _layers(additional_config, environ):
        try:
            _refuse_unknown(layer)
            MimoConfig(**layer)  # here too, so that the message names the source
        except MimoConfigError as error:
            raise MimoConfigError(f"{error} [from {source}]") from None
        values |= layer
    return MimoConfig(**values)


def from_vllm_config(vllm_config: Any, environ: Mapping[str, str] = os.environ) -> MimoConfig:
    """The config in force for a ``vllm.config.VllmConfig``; raises as ``from_sources`` does."""
    additional = getattr(vllm_config, "additional_config", None)
    # Platforms may put an object of their own there; only a mapping can hold our section.
    return from_sources(additional if isinstance(additional, Mapping) else None, environ)


def provenance(
    additional_config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Which source each key's value comes from (``FROM_DEFAULT``, ``FROM_ENV``, ``FROM_ARGS``)."""
    found = {field.name: FROM_DEFAULT for field in dataclasses.fields(MimoConfig)}
    for source, layer in _layers(additional_config, environ):
        found |= dict.fromkeys(layer, source)
    return found


def _layers(
    additional_config: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> list[tuple[str, dict[str, Any]]]:
    """(source, keys) of the sources that are present, weakest first."""
    layers = []
    text = environ.get(ENV_VAR, "").strip()
    if text:
        layers.append((FROM_ENV, _parse_env(text)))
    section = (additional_config or {}).get(SECTION)
    if section is not None:
        if not isinstance(section, Mapping):
            raise MimoConfigError(
                f"{FROM_ARGS}: must be a JSON object, got {section!r} ({type(section).__name__})"
            )
        layers.append((FROM_ARGS, dict(section)))
    return layers


def _parse_env(text: str) -> dict[str, Any]:
    """The object that the variable holds or points to."""
    where = ENV_VAR
    if not text.startswith("{"):
        where = f"{ENV_VAR} (file {text})"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise MimoConfigError(
                f"{where}: neither a JSON object nor a readable file: {error}"
            ) from None
    try:
        parsed = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise MimoConfigError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise MimoConfigError(f"{where}: must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _refuse_unknown(layer: Mapping[str, Any]) -> None:
    """Raise MimoConfigError for the first key that is no field, with the nearest one."""
    valid = [field.name for field in dataclasses.fields(MimoConfig)]
    for key in layer:
        if key in valid:
            continue
        near = difflib.get_close_matches(str(key), valid, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise MimoConfigError(
            f"{SECTION} config: unknown key {key!r}{hint}; valid keys: {', '.join(valid)}"
        )
