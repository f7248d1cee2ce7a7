"""What a running vLLM server counts about itself, read from its Prometheus page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from vllm_mimo.metrics.names import ENCODER_CACHE_HITS, ENCODER_CACHE_MISSES, PREFIX
from vllm_mimo.serving.process import fetch

PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
"""Prompt tokens that were looked up in the prefix cache."""
PREFIX_HITS = "vllm:prefix_cache_hits_total"
"""Those of them that it held."""
MEDIA_QUERIES = "vllm:mm_cache_queries_total"
"""Media items of requests; vLLM looks up whether it has prepared them before."""
MEDIA_HITS = "vllm:mm_cache_hits_total"
"""Those of them that it had."""
ENCODER_HITS = f"{PREFIX}{ENCODER_CACHE_HITS}_total"
"""Media items whose embeddings were there."""
ENCODER_MISSES = f"{PREFIX}{ENCODER_CACHE_MISSES}_total"
"""Media items that had to be embedded."""

_NOT_SUMMABLE = ("_bucket", "_created", "_info")
"""Endings of samples that a sum over label sets would make nonsense of."""


def read(url: str) -> dict[str, float]:
    """Sample name -> value, added up over all engines and other labels.

    Histograms give their `_sum` (seconds, mostly) and `_count`; buckets are left out.

    Args:
        url: root address of the server.

    Raises OSError when the server does not answer.
    """
    return parse(fetch(url + "/metrics").decode())


def parse(text: str) -> dict[str, float]:
    """Samples of a Prometheus text page, as `read` gives them."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith(_NOT_SUMMABLE):
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each sample has grown by. One that was not there before has grown from 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Tokens looked up in the prefix cache, and tokens found there."""

    queries: int
    hits: int

    @classmethod
    def of(cls, values: Mapping[str, float]) -> PrefixCache:
        """From `read` (since the server's start) or `difference`.

        Raises KeyError when the server does not count them: not vLLM, or metrics are off.
        """
        return cls(int(values[PREFIX_QUERIES]), int(values[PREFIX_HITS]))

    @property
    def rate(self) -> float:
        """Share of the tokens that was found, 0 where none was looked up."""
        return self.hits / self.queries if self.queries else 0.0


@dataclass(frozen=True, slots=True)
class EncoderCache:
    """Media items found in the encoder cache, and items that an encoder had to embed."""

    hits: int
    misses: int

    @classmethod
    def of(cls, values: Mapping[str, float]) -> EncoderCache:
        """From `read` (since the server's start) or `difference`; zeros where none is counted."""
        return cls(int(values.get(ENCODER_HITS, 0)), int(values.get(ENCODER_MISSES, 0)))


@dataclass(frozen=True, slots=True)
class MediaCache:
    """Media items that requests held, and those that vLLM had prepared before."""

    queries: int
    hits: int

    @classmethod
    def of(cls, values: Mapping[str, float]) -> MediaCache:
        """From `read` (since the server's start) or `difference`; zeros where none is counted."""
        return cls(int(values.get(MEDIA_QUERIES, 0)), int(values.get(MEDIA_HITS, 0)))
