"""The keys of the two KV pools: what is taken, and what the refusals say."""

from __future__ import annotations

import json
import math

import pytest

from vllm_mimo.config import ENV_VAR, MimoConfig, MimoConfigError, from_sources

ACCEPTED = {
    "two_pools": (True, False),
    "swa_pool_fraction": (None, 0.001, 0.5, 0.95),
    "swa_pool_blocks": (None, 2, 10**9),
    "swa_block_size": (None, 1, 16, 64),
    "bounded_replay": (True, False),
    "eviction": ("return_time", "lru"),
    "tail_interval": (0, 1, 2048),
    "tail_dense_until": (0, 8192),
    "prefix_hash": ("xxhash", "vllm"),
    "shadow_fraction": (0.0, 0, 1, 1.0, 0.25),
}

REFUSED = [
    ("two_pools", 1, "must be true or false"),
    ("two_pools", None, "must be true or false"),
    ("swa_pool_fraction", 0.0, r"must be 0.001 to 0.95, got 0.0"),
    ("swa_pool_fraction", 0.96, r"must be 0.001 to 0.95, got 0.96"),
    ("swa_pool_fraction", 1, r"must be 0.001 to 0.95, got 1"),
    ("swa_pool_fraction", math.nan, r"must be 0.001 to 0.95, got nan"),
    ("swa_pool_fraction", "0.5", "must be a number or null"),
    ("swa_pool_fraction", True, "must be a number or null"),
    ("swa_pool_blocks", 1, "must be 2 or more, got 1"),
    ("swa_pool_blocks", -5, "must be 2 or more, got -5"),
    ("swa_pool_blocks", 2.0, "must be an integer or null"),
    ("swa_block_size", 0, "must be 1 or more, got 0"),
    ("swa_block_size", True, "must be an integer or null"),
    ("eviction", "fifo", 'must be one of "return_time", "lru"'),
    ("tail_interval", -1, "must be 0 or more, got -1"),
    ("tail_interval", None, "must be an integer, got None"),
    ("tail_dense_until", -1, "must be 0 or more, got -1"),
    ("prefix_hash", "sha256", 'must be one of "xxhash", "vllm"'),
    ("shadow_fraction", 1.5, "must be 0 to 1, got 1.5"),
    ("shadow_fraction", -0.1, "must be 0 to 1, got -0.1"),
    ("shadow_fraction", math.inf, "must be 0 to 1, got inf"),
]


@pytest.mark.parametrize("key", ACCEPTED)
def test_values_up_to_the_limits_are_taken(key: str) -> None:
    for value in ACCEPTED[key]:
        assert getattr(MimoConfig(**{key: value}), key) == value


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_a_refusal_names_key_source_limits_and_value(key: str, value: object, message: str) -> None:
    for arguments, environ, source in (
        ({"mimo": {key: value}}, {}, "--additional-config mimo"),
        ({}, {ENV_VAR: json.dumps({key: value})}, ENV_VAR),
    ):
        with pytest.raises(MimoConfigError, match=message) as caught:
            from_sources(arguments, environ)
        assert repr(key) in str(caught.value)
        assert f"[from {source}]" in str(caught.value)


def test_two_pools_with_replay_and_tails_are_what_a_user_gets() -> None:
    config = from_sources(None, {})
    assert config.two_pools and config.bounded_replay
    assert config.swa_pool_fraction is config.swa_pool_blocks is config.swa_block_size is None
    assert config.shadow_fraction == 0, "no request is computed twice unless asked for"
