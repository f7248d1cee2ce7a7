"""What the bytes of a KV block depend on beside its tokens, as a digest for the keys of L3.

The same in the scheduler and in all workers of an engine, and in every engine that may share KV:
anything that differs here makes them strangers to each other, which costs hits and never a wrong
one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mimo.compat import vllm_version
from vllm_mimo.kv.spec import TwoPoolConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.vllm_mimo")

FORMAT = 1
"""Raise it when what a host block holds changes."""

_TENSORS = 2048
"""Tensors of which some bytes are read; all of them count by name, type, shape and place."""
_SAMPLE = 256


def fingerprint(vllm_config: VllmConfig, tiers: TwoPoolConfig) -> bytes:
    """The digest: 32 bytes."""
    parts = {
        "format": FORMAT,
        "vllm": vllm_version(),
        "model": _config(vllm_config.model_config.hf_config),
        "weights": weights_digest(weights_folder(vllm_config)),
        "revision": str(vllm_config.model_config.revision),
        "dtype": str(vllm_config.model_config.dtype),
        "quantization": str(vllm_config.model_config.quantization),
        "device": vllm_config.device_config.device_type,
        "layout": str(vllm_config.cache_config.get_resolved_kv_cache_layout()),
        "hash": str(vllm_config.cache_config.prefix_caching_hash_algo),
        "groups": [_group(group) for group in tiers.kv_cache_groups],
        "speculation": _speculation(vllm_config),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def rank_name(vllm_config: VllmConfig, rank: int) -> str:
    """Which part of a block a worker holds: its place among the ranks, and how many there are."""
    parallel = vllm_config.parallel_config
    tensor = parallel.tensor_parallel_size
    return f"tp{rank % tensor}/{tensor} pp{rank // tensor}/{parallel.pipeline_parallel_size}"


def weights_folder(vllm_config: VllmConfig) -> Path | None:
    """Where the checkpoint's files are, if they are on this machine."""
    model = vllm_config.model_config
    folder = Path(model.model)
    if folder.is_dir():
        return folder
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model.model, "config.json", revision=model.revision)
    except Exception as error:  # a name of another hub, e.g.
        logger.debug("no cached checkpoint of %s: %s", model.model, error)
        return None
    return Path(found).parent if isinstance(found, str) else None


def weights_digest(folder: Path | None) -> str:
    """Of the checkpoint's tensors: all headers, and bytes from up to 2,048 tensors."""
    if folder is None:
        return "unknown"
    digest = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors"))
    tensors = [(path, place) for path in files for place in _places(path, digest)]
    step = max(1, len(tensors) // _TENSORS)
    for path, places in _by_file(tensors[::step]):
        with path.open("rb") as file:
            for start, end in places:
                middle = (start + end - min(_SAMPLE, end - start)) // 2
                file.seek(middle)
                digest.update(file.read(min(_SAMPLE, end - start)))
    return digest.hexdigest()


def _places(path: Path, digest: Any) -> list[tuple[int, int]]:
    """First and last byte of each tensor in a safetensors file; its header goes into `digest`."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = file.read(length)
    digest.update(path.name.encode() + header)
    entries = json.loads(header)
    return [
        (8 + length + entry["data_offsets"][0], 8 + length + entry["data_offsets"][1])
        for name, entry in sorted(entries.items())
        if name != "__metadata__"
    ]


def _by_file(
    tensors: list[tuple[Path, tuple[int, int]]],
) -> Iterator[tuple[Path, list[tuple[int, int]]]]:
    found: dict[Path, list[tuple[int, int]]] = {}
    for path, place in tensors:
        found.setdefault(path, []).append(place)
    yield from found.items()


def _config(hf_config: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(hf_config.to_dict(), default=str))
    for key in ("_name_or_path", "transformers_version", "vllm_mimo"):
        values.pop(key, None)
    return dict(values)


def _group(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    return {
        "kind": type(spec).__name__,
        "block": spec.block_size,
        "page": spec.page_size_bytes,
        "dtype": str(spec.dtype),
        "window": getattr(spec, "sliding_window", None),
    }


def _speculation(vllm_config: VllmConfig) -> str:
    """Drafter layers keep KV in the SWA blocks."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return ""
    return f"{speculative.method} {speculative.num_speculative_tokens}"
