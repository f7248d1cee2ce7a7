"""What stands round a value in an engine, so that no wrong byte is ever taken for KV.

A frame is a header of 32 bytes and the value, or its AES-256-GCM ciphertext. The header's checksum
is XXH3-64 of the value seeded with the key, so a value found under another key fails too; encrypted
frames are authenticated together with key and header instead.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from vllm_mimo.l3.engine import Buffers
from vllm_mimo.l3.outcome import MissCause

HEADER = struct.Struct("<4sHHQQ8s")
"""Magic, version, flags, length of the whole value in bytes, checksum, encryption key's mark."""
MAGIC, VERSION = b"MML3", 1
_ENCRYPTED = 1
_NO_MARK = bytes(8)
_NONCE, _TAG = 12, 16


def length_of(bufs: Iterable[memoryview]) -> int:
    """Bytes of a value in several buffers."""
    size = 0
    for buf in bufs:  # several times faster than sum() over a generator
        size += buf.nbytes
    return size


def checksum(key: bytes, bufs: Iterable[memoryview]) -> int:
    """XXH3-64 of a value's bytes, seeded with its key."""
    state = xxhash.xxh3_64(seed=xxhash.xxh3_64_intdigest(key))
    for buf in bufs:
        state.update(buf)
    return state.intdigest()


class PlainFraming:
    """Frames with a checksum. The value is neither copied nor changed."""

    overhead = HEADER.size
    """Bytes that a frame has beside the value."""

    def seal(self, key: bytes, bufs: Buffers, total: int) -> Buffers:
        """A frame to store: `bufs` are a whole value or a slice of one of `total` bytes."""
        digest = checksum(key, bufs)
        return [memoryview(HEADER.pack(MAGIC, VERSION, 0, total, digest, _NO_MARK)), *bufs]

    def space(self, bufs: Buffers) -> Buffers:
        """Buffers for a frame that is to be read, for `open` to check."""
        return [memoryview(bytearray(HEADER.size)), *bufs]

    def open(self, key: bytes, frame: Buffers, bufs: Buffers, total: int) -> MissCause | None:
        """Check a frame that was read; None if `bufs` now hold the value."""
        magic, version, flags, length, digest, mark = HEADER.unpack(frame[0])
        if (magic, version, flags, mark) != (MAGIC, VERSION, 0, _NO_MARK):
            return MissCause.FOREIGN
        if length != total or digest != checksum(key, bufs):
            return MissCause.CORRUPT
        return None


class SealedFraming:
    """Encrypted frames. A frame is as long as `PlainFraming`'s plus nonce and tag."""

    overhead = HEADER.size + _NONCE + _TAG

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # optional

        self._cipher = AESGCM(key)
        self._mark = hmac.digest(key, b"vllm-mimo l3 key mark", hashlib.sha256)[:8]
        self._scratch = _Scratch()

    def seal(self, key: bytes, bufs: Buffers, total: int) -> Buffers:
        """As in `PlainFraming`."""
        header = HEADER.pack(MAGIC, VERSION, _ENCRYPTED, total, 0, self._mark)
        nonce = os.urandom(_NONCE)
        # One buffer of its own: the frame waits in a batch, so scratch will not do.
        sealed = memoryview(bytearray(length_of(bufs) + _TAG))
        self._cipher.encrypt_into(nonce, self._joined(bufs), key + header, sealed)
        return [memoryview(header), memoryview(nonce), sealed]

    def space(self, bufs: Buffers) -> Buffers:
        """As in `PlainFraming`."""
        sealed = np.empty(length_of(bufs) + _TAG, np.uint8)
        return [
            memoryview(bytearray(HEADER.size)),
            memoryview(bytearray(_NONCE)),
            memoryview(sealed),
        ]

    def open(self, key: bytes, frame: Buffers, bufs: Buffers, total: int) -> MissCause | None:
        """As in `PlainFraming`; the buffers hold nothing of use unless it returns None."""
        from cryptography.exceptions import InvalidTag

        header, nonce, sealed = frame
        magic, version, flags, length, digest, mark = HEADER.unpack(header)
        if (magic, version, flags, mark) != (MAGIC, VERSION, _ENCRYPTED, self._mark):
            return MissCause.FOREIGN
        if length != total or digest != 0:
            return MissCause.CORRUPT
        data = bytes(key + header)
        try:
            if len(bufs) == 1:
                self._cipher.decrypt_into(nonce, sealed, data, bufs[0])
                return None
            plain = self._scratch.take(length_of(bufs))
            self._cipher.decrypt_into(nonce, sealed, data, plain)
        except InvalidTag:
            return MissCause.CORRUPT
        scatter(plain, bufs)
        return None

    def _joined(self, bufs: Buffers) -> memoryview:
        if len(bufs) == 1:
            return bufs[0]
        return gather(bufs, self._scratch.take(length_of(bufs)))


Framing = PlainFraming | SealedFraming


class _Scratch(threading.local):
    """A thread's buffer for values that lie in several places, kept since fresh pages are slow."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())

    def take(self, size: int) -> memoryview:
        if self._memory.nbytes < size:
            self._memory = memoryview(bytearray(size))
        return self._memory[:size]


def gather(bufs: Buffers, into: memoryview) -> memoryview:
    """Copy buffers into one that is as long as all of them, and return it."""
    start = 0
    for buf in bufs:
        copy(into[start : start + buf.nbytes], buf)
        start += buf.nbytes
    return into


def scatter(source: memoryview, bufs: Buffers) -> None:
    """Copy one buffer into several, which are as long together."""
    start = 0
    for buf in bufs:
        end = start + buf.nbytes
        copy(buf, source[start:end])
        start = end


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes, without the interpreter's lock where that pays."""
    if source.nbytes < 4096:
        target[:] = source
    else:
        np.copyto(_array(target), _array(source))


def _array(view: memoryview) -> Any:
    return np.frombuffer(view, np.uint8)


def load_key(path: str) -> bytes:
    """The 32 bytes of an encryption key file; ValueError says what is wrong with it."""
    where = f"l3: 'encryption_key_file' {path}"
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(200)
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"{where} is open to others: chmod 600 it")
    if len(raw) == 32:
        return raw
    try:
        key = bytes.fromhex(raw.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ValueError(f"{where} must hold 32 raw bytes or 64 hex digits, found {len(raw)} bytes")
    return key


def make_framing(key_file: str | None) -> Framing:
    """Framing with or without encryption; ValueError for a bad key, ImportError without library."""
    return PlainFraming() if key_file is None else SealedFraming(load_key(key_file))
