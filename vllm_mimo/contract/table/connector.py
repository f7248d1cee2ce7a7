"""What vLLM's media connector is made of: how bytes become sound, and what is refused."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_MEDIA = ("vllm.multimodal.media",)
_CONNECTOR = ("vllm.multimodal.media.connector",)
_AUDIO = ("vllm.multimodal.media.audio",)
_IMAGE = ("vllm.multimodal.media.image",)
_OURS = "vllm_mimo.multimodal.connector"

CONNECTOR_ENTRIES = (
    Entry(
        _MEDIA,
        "MEDIA_CONNECTOR_REGISTRY.register",
        used_by=_OURS,
        why="our connector is found by its name",
        parameters=("name",),
    ),
    *(
        Entry(
            _CONNECTOR,
            f"MediaConnector.{name}",
            used_by=_OURS,
            why="JPEG files go through our decoder",
            parameters=("image_url", "image_mode"),
            overrides=True,
        )
        for name in ("fetch_image", "fetch_image_async")
    ),
    Entry(
        _IMAGE,
        "ImageMediaIO.__init__",
        used_by=_OURS,
        why="pictures that are no JPEG in colour",
        parameters=("image_mode",),
    ),
    Entry(
        _IMAGE,
        "ImageMediaIO",
        used_by=_OURS,
        why="whether pictures are wanted in RGB",
        attributes=("image_mode",),
    ),
    Entry(
        _IMAGE,
        "ImageMediaIO.load_bytes",
        used_by=_OURS,
        why="a file's bytes to a picture",
        parameters=("data",),
        overrides=True,
    ),
    Entry(
        _MEDIA,
        "MediaWithBytes",
        used_by=_OURS,
        why="media and the bytes that they are known by, in this order (the parser, too)",
        attributes=("media", "original_bytes"),
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
