"""What a user may choose about the tiers of a replay, beside the plugin's own keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vllm_mimo.replay.policy import PolicyError

KeepAlive = Literal["off", "hits", "ends"]
Route = Literal["request", "session", "moving"]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Sizes are of one rank."""

    host_gb: float = 0.0
    """10^9 bytes of host memory of each engine."""
    l3_gb: float = 0.0
    """10^9 bytes of L3, which all engines share; 0 for none."""
    keep_alive: KeepAlive = "hits"
    """When L3 is told that a chain is in use: never, when a request takes it from the device or
    host memory, or also when a request ends."""
    engines: int = 1
    route: Route = "request"
    """What is sent to an engine by chance: each request, each session, or each session anew every
    half hour."""

    @classmethod
    def split(cls, name: str, given: Mapping[str, Any]) -> tuple[TierOptions, dict[str, Any]]:
        """Ours of a policy's options, and the rest: the plugin's keys. Raises PolicyError."""
        fields = {field.name for field in dataclasses.fields(cls)}
        own = {key: value for key, value in given.items() if key in fields}
        if isinstance(own.get("keep_alive"), bool):
            own["keep_alive"] = "hits" if own["keep_alive"] else "off"
        made = cls(**own)
        made.check(name)
        return made, {key: value for key, value in given.items() if key not in fields}

    def check(self, name: str) -> None:
        """Raise PolicyError where a value is none."""
        wrong = [
            key
            for key, valid in (
                ("host_gb", _is_size(self.host_gb)),
                ("l3_gb", _is_size(self.l3_gb)),
                ("keep_alive", self.keep_alive in get_args(KeepAlive)),
                ("engines", isinstance(self.engines, int) and self.engines >= 1),
                ("route", self.route in get_args(Route)),
            )
            if not valid
        ]
        if wrong:
            raise PolicyError(
                f"{name}: '{wrong[0]}' is {getattr(self, wrong[0])!r}; valid: host_gb and l3_gb "
                "0 or more, keep_alive off, hits or ends, engines 1 or more, "
                "route request, session or moving"
            )
        if self.l3_gb and not self.host_gb:
            raise PolicyError(f"{name}: L3 is read through host memory; give --host-gb too")


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
