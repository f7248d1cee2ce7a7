"""What the manager knows of tiers below the device's pools: where a block may come from instead.

A resume names blocks of lower tiers beside the pools' own. The manager gives each of them a block
of its own to be loaded into, and hands the list to `LowerTiers`, which loads them in that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
    from vllm.v1.request import Request

    from vllm_mimo.kv.resume import Resume


@dataclass(frozen=True, slots=True)
class HostHit:
    """A block that host memory holds."""

    block: KVCacheBlock
    """Its entry in the host's block pool."""


@dataclass(frozen=True, slots=True)
class RemoteHit:
    """A block that L3 said it holds; it has to come to host memory first."""

    key: bytes
    """Block hash with group id."""


@dataclass(frozen=True, slots=True)
class Load:
    """One block to be copied from host memory."""

    source: KVCacheBlock
    """In the host's pool."""
    target: KVCacheBlock
    """In the device's pool."""


class Finder(Protocol):
    """What `ResumeRule` asks of a pool, or of several tiers of one kind of KV seen as one."""

    block_size: int

    @property
    def block_hashes(self) -> Callable[[Sequence[BlockHash]], Sequence[BlockHash]]:
        """Gives a request's hashes at this pool's block size."""
        ...


class PrefixFinder(Finder, Protocol):
    """Full-attention blocks."""

    def find_prefix(self, hashes: Sequence[BlockHash], most: int) -> list[Any]:
        """The blocks of the longest prefix, `most` at most."""
        ...


class TailFinder(Finder, Protocol):
    """SWA blocks."""

    def find_tail(
        self, hashes: Sequence[BlockHash], end: int, lowest: int
    ) -> tuple[int, list[Any]] | None:
        """See `WindowManager.find_tail`."""
        ...


class LowerTiers(Protocol):
    """The tiers below, seen by the manager."""

    def deeper(self, request: Request, most: int, local: Resume) -> Resume | None:
        """A resume with blocks of host memory that computes less than `local`, if there is one.

        `most` as in `ResumeRule.choose`.
        """
        ...

    def step_starts(self) -> None:
        """A step is about to be scheduled."""
        ...

    def load(self, request: Request, full: list[Load], window: list[Load]) -> None:
        """Load these blocks in the step that is being scheduled. Their hashes are published."""
        ...
