"""The decoding libraries by name. None is imported before it is used."""

from __future__ import annotations

import importlib

from vllm_mimo.media.decoders.job import Decoder

NAMES = ("pyav", "torchcodec", "decord", "nvdec")
"""Modules here, whose `decode` does it."""


def decoder(name: str) -> Decoder:
    """The decoder of a name. Raises ValueError for an unknown one, and ImportError, with what to
    install, for a library that is absent.
    """
    if name not in NAMES:
        raise ValueError(f"unknown video decoder {name!r}; choose one of {', '.join(NAMES)}")
    found: Decoder = importlib.import_module(f"vllm_mimo.media.decoders.{name}").decode
    return found
