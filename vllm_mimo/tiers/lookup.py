"""The device's pools and the tiers below seen as one, for the choice of where a request resumes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash

from vllm_mimo.kv.below import HostHit, RemoteHit
from vllm_mimo.kv.pools import FullManager, WindowManager, prefix_of, tail_of
from vllm_mimo.tiers.host_pool import HostPool

NOTHING: frozenset[bytes] = frozenset()


def tiers_as_one(
    device: Callable[[bytes], Any], host: Callable[[bytes], Any], remote: Container[bytes]
) -> Callable[[bytes], Any]:
    """A look-up that asks the device, then the host, then what L3 is known to hold."""

    def find(key: bytes) -> Any:
        block = device(key)
        if block is not None:
            return block
        block = host(key)
        if block is not None:
            return HostHit(block)
        return RemoteHit(key) if key in remote else None

    return find


class FullTiers:
    """Full-attention blocks of all tiers (`vllm_mimo.kv.below.Finder`).

    Args:
        known: the device's own blocks of the prefix that will be asked for.
    """

    def __init__(
        self,
        device: FullManager,
        host: HostPool,
        known: Sequence[Any],
        remote: Container[bytes] = NOTHING,
    ) -> None:
        self.known = known
        self.block_size = device.block_size
        self.block_hashes = device.block_hashes
        self.key_end = device.key_end
        self.find = tiers_as_one(device.cached, host.find, remote)

    def find_prefix(self, hashes: Sequence[BlockHash], most: int) -> list[Any]:
        """See `Finder`."""
        known = list(self.known[:most])
        rest = hashes[len(known) : most]
        return known + prefix_of(self.find, rest, len(rest), self.key_end)


class WindowTiers:
    """SWA blocks of all tiers (`vllm_mimo.kv.below.TailFinder`)."""

    def __init__(
        self, device: WindowManager, host: HostPool, remote: Container[bytes] = NOTHING
    ) -> None:
        self.block_size = device.block_size
        self.block_hashes = device.block_hashes
        self.key_end = device.key_end
        self.tail_blocks = device.rule.blocks
        self.find = tiers_as_one(device.cached, host.find, remote)

    def find_tail(
        self, hashes: Sequence[BlockHash], end: int, lowest: int
    ) -> tuple[int, list[Any]] | None:
        """See `TailFinder`."""
        return tail_of(self.find, hashes, end, lowest, self.tail_blocks, self.key_end)
