"""From what a user types to a policy, a size, a retention."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vllm_mimo.replay.deployment import Deployment
from vllm_mimo.replay.policy import ManagerPolicy, PolicyError

POLICIES = (
    "mimo, mimo:KEY=VALUE[,KEY=VALUE...] (keys of the plugin's config, or host_gb, l3_gb, "
    "keep_alive, engines, route), "
    "vllm (retention 0, its default), vllm:TOKENS, vllm:dense"
)

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Bytes of "20GB", "18.5 GiB", "512MB" or a plain number; raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(i?)B?)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"'{text}' is no size; write e.g. 20GB or 18.5GiB")
    number, unit, binary = match[1], (match[2] or "").upper(), match[3]
    scale = 1024 ** list(UNITS).index(unit) if binary else UNITS[unit]
    size = int(float(number) * scale)
    if size <= 0:
        raise ValueError(f"'{text}' leaves no bytes for the KV cache; give more, e.g. 20GB")
    return size


def check_policy(text: str) -> str:
    """The name, if it is one; raises PolicyError listing the valid ones."""
    kind, _, rest = text.partition(":")
    valid = (kind == "mimo" and (not rest or "=" in rest)) or (
        kind == "vllm" and (text == kind or rest == "dense" or rest.isdecimal())
    )
    if not valid:
        raise PolicyError(f"unknown policy '{text}'; valid: {POLICIES}")
    return text


def make_policy(
    text: str, deployment: Deployment, defaults: Mapping[str, Any] = MappingProxyType({})
) -> ManagerPolicy:
    """The policy of a name that `check_policy` accepted; imports vLLM.

    `defaults` are options of the `mimo` policies that do not say otherwise. Raises PolicyError.
    """
    kind, _, rest = check_policy(text).partition(":")
    if kind == "vllm":
        from vllm_mimo.replay.vllm_policy import VllmPolicy

        return VllmPolicy(text, deployment, None if rest == "dense" else int(rest or 0))
    from vllm_mimo.replay.mimo_policy import MimoPolicy
    from vllm_mimo.replay.tier_options import TierOptions
    from vllm_mimo.replay.tier_policy import TieredPolicy

    pairs = dict(item.partition("=")[::2] for item in rest.split(",") if item)
    options = dict(defaults) | {key: _value(raw) for key, raw in pairs.items()}
    tiers, keys = TierOptions.split(text, options)
    if tiers.host_gb or tiers.engines > 1:
        return TieredPolicy(text, deployment, keys, tiers)
    return MimoPolicy(text, deployment, keys)


def _value(raw: str) -> Any:
    """JSON where it is JSON (numbers, true), else the text itself."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw
