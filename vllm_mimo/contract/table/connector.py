"""What vLLM's media connector is made of: how bytes become sound, and what is refused."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_MEDIA = ("vllm.multimodal.media",)
_CONNECTOR = ("vllm.multimodal.media.connector",)
_AUDIO = ("vllm.multimodal.media.audio",)
_OURS = "vllm_mimo.multimodal.connector"

CONNECTOR_ENTRIES = (
    Entry(
        _MEDIA,
        "MEDIA_CONNECTOR_REGISTRY.register",
        used_by=_OURS,
        why="our connector is found by its name",
        parameters=("name",),
    ),
    Entry(
        _MEDIA,
        "MediaConnector",
        used_by=_OURS,
        why="what is asked of the base class",
        attributes=("allowed_local_media_path", "media_io_kwargs"),
    ),
    *(
        Entry(
            _CONNECTOR,
            f"MediaConnector.{name}",
            used_by=_OURS,
            why="sound goes through our decoder",
            parameters=("audio_url",),
            overrides=True,
        )
        for name in ("fetch_audio", "fetch_audio_async")
    ),
    *(
        Entry(
            _CONNECTOR,
            f"MediaConnector.{name}",
            used_by=_OURS,
            why="an address to media; what is the client's error",
            parameters=("url", "media_io", "fetch_timeout"),
            overrides=True,
        )
        for name in ("load_from_url", "load_from_url_async")
    ),
    Entry(
        _CONNECTOR,
        "MediaConnector._load_file_url",
        used_by=_OURS,
        why="files that are not to be had are the client's error",
        parameters=("url_spec", "media_io"),
        overrides=True,
    ),
    Entry(
        _AUDIO,
        "AudioMediaIO",
        used_by=_OURS,
        why="the user's choice of a decoder",
        attributes=("audio_backend",),
    ),
    Entry(
        _AUDIO,
        "AudioMediaIO.load_bytes",
        used_by=_OURS,
        why="a file's bytes to sound",
        parameters=("data",),
        overrides=True,
    ),
    Entry(
        _AUDIO,
        "AudioMediaIO.load_file",
        used_by=_OURS,
        why="a local file to sound",
        parameters=("filepath",),
        overrides=True,
    ),
    Entry(
        _AUDIO,
        "AudioMediaIO._validate_encoded_size",
        used_by=_OURS,
        why="vLLM's limit of a file's size",
        parameters=("size",),
    ),
)
