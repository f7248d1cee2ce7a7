"""From settings to a client, or to none: the third tier is never worth a failed start."""

from __future__ import annotations

import logging

from vllm_mimo.l3.client import L3Client
from vllm_mimo.l3.directory import Directory, StaticDirectory
from vllm_mimo.l3.engine import EngineUnavailable
from vllm_mimo.l3.keys import KeySpace
from vllm_mimo.l3.registry import load_engine
from vllm_mimo.l3.settings import L3Settings

logger = logging.getLogger("vllm.vllm_mimo")


def open_client(
    settings: L3Settings,
    fingerprint: bytes,
    rank: str,
    directory: Directory | None = None,
) -> L3Client | None:
    """A client for one rank, None with one warning if the tier cannot be used.

    `fingerprint` stands for all that a block's bytes depend on beside its tokens (see `KeySpace`);
    `L3Settings.weight_version` is added to it. Without a `directory` there is one cell, on this
    machine. Raises nothing for what can go wrong with an engine, a disk or a key file.
    """
    try:
        maker = load_engine(settings.engine)
        return L3Client(
            directory or StaticDirectory(),
            lambda cell: maker(settings, cell),
            settings,
            make_keyspace(settings, fingerprint, rank),
        )
    except (EngineUnavailable, ValueError, ImportError) as error:
        logger.warning("L3 cache: off, serving goes on without it: %s", error)
        return None


def make_keyspace(settings: L3Settings, fingerprint: bytes, rank: str) -> KeySpace:
    """The key space of a rank under these settings."""
    version = settings.weight_version.encode()
    return KeySpace(len(version).to_bytes(4, "big") + version + fingerprint, rank)
