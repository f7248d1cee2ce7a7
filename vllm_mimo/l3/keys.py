"""Names of values: bytes that hold everything a value depends on.

A key is, in order: format version (1 byte), tenant (16), model and rank (12), KV cache group (1),
block hash (up to 32), slice (2); 64 bytes at most. Tenant comes first so that all values of one are
one range of keys, and digests rather than names stand for tenant, model and rank, so a key's length
says how long its hash is and no two sets of parts give the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

FORMAT = 1
"""Version of the keys' layout, and the first byte of each."""
MAX_HASH_BYTES = 32
MAX_KEY_BYTES = 64
_FIRST = bytes(2)

BlockKey = tuple[int, bytes]
"""A block as callers know it: number of its KV cache group, and its block hash."""


@dataclass(frozen=True)
class Label:
    """What a batch of keys belongs to: whose it is, and where it is kept.

    Values of one tenant are never found under another. `prefix` (of a session, of a shared system
    prompt) only places them: the same must be given to read as to write.
    """

    tenant: str = ""
    prefix: str = ""

    @property
    def place(self) -> bytes:
        """What placement hashes; different pairs of tenant and prefix never look the same."""
        tenant = self.tenant.encode()
        return len(tenant).to_bytes(4, "big") + tenant + self.prefix.encode()


def tenant_prefix(tenant: str) -> bytes:
    """What all keys of a tenant start with, and no others."""
    return bytes([FORMAT]) + hashlib.sha256(b"tenant\0" + tenant.encode()).digest()[:16]


class KeySpace:
    """Makes keys for one rank of one model.

    `fingerprint` stands for everything that the bytes of a block depend on beside its tokens:
    weights, KV dtype, layout, block size, parallelism. `rank` says which part of a block it is.
    """

    def __init__(self, fingerprint: bytes, rank: str) -> None:
        self.fingerprint, self.rank = fingerprint, rank
        digest = hashlib.sha256(len(fingerprint).to_bytes(8, "big"))
        digest.update(fingerprint + rank.encode())
        self._space = digest.digest()[:12]

    def start(self, tenant: str) -> bytes:
        """What all keys of this model, rank and tenant start with."""
        return tenant_prefix(tenant) + self._space

    def keys(self, tenant: str, blocks: Sequence[BlockKey]) -> list[bytes]:
        """Keys of blocks, of their first slice; ValueError for what does not fit into a key."""
        start, keys = self.start(tenant), []
        for group, block_hash in blocks:
            if not 0 <= group < 256:
                raise ValueError(f"KV cache group must be 0 to 255, got {group}")
            if not 0 < len(block_hash) <= MAX_HASH_BYTES:
                raise ValueError(
                    f"block hash must have 1 to {MAX_HASH_BYTES} bytes, got {len(block_hash)}"
                )
            keys.append(start + bytes([group]) + block_hash + _FIRST)
        return keys


def slice_key(key: bytes, number: int) -> bytes:
    """Key of another slice of the same block."""
    return key[:-2] + number.to_bytes(2, "big")
