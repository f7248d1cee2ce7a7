"""A model of L3: which blocks a store that engines share holds, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from vllm.v1.core.kv_cache_utils import get_group_id


class RemoteIndex:
    """Hashes with group id, no bytes. One rank's share of L3.

    Args:
        capacity: bytes.
        block_bytes: of a full-attention and an SWA block.
    """

    def __init__(self, capacity: int, block_bytes: tuple[int, int]) -> None:
        self.capacity = capacity
        self.block_bytes = block_bytes
        self.used = 0
        self.written = 0
        """Bytes that were put and not there yet."""
        self.read = 0
        """Bytes."""
        self.evicted = 0
        """Blocks."""
        self._held: OrderedDict[bytes, int] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def figures(self) -> dict[str, int]:
        """For the report."""
        return {
            "l3_blocks": len(self),
            "l3_evicted": self.evicted,
            "l3_read_bytes": self.read,
            "l3_written_bytes": self.written,
        }

    def put(self, keys: Iterable[bytes]) -> None:
        """Write blocks; those that are held already are only used."""
        held = self._held
        for key in keys:
            if key in held:
                held.move_to_end(key)
                continue
            size = self.block_bytes[get_group_id(key)]
            held[key] = size
            self.used += size
            self.written += size
            while self.used > self.capacity:
                self.used -= held.popitem(last=False)[1]
                self.evicted += 1

    def get(self, keys: Iterable[bytes]) -> None:
        """Read blocks that are held."""
        for key in keys:
            self.read += self._held[key]
            self._held.move_to_end(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Keep the blocks that are held as if they had been read."""
        for key in keys:
            if key in self._held:
                self._held.move_to_end(key)
