"""What the doctor found, as data. ``vllm_mimo.cli.doctor`` prints it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a finding stands. Only ``MISSING`` makes a machine unable to run the plugin."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: a value of JSON's types, and what to do about it ("" if nothing)."""

    section: str
    name: str
    status: Status
    value: Any
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order in which they are shown."""

    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the findings without which nothing runs."""
        return tuple(f.name for f in self.findings if f.status is Status.MISSING)

    @property
    def runnable(self) -> bool:
        """Whether vLLM can serve MiMo models here with the plugin."""
        return not self.missing

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON's types: ``runnable``, ``missing``, and ``findings`` in order."""
        return {
            "runnable": self.runnable,
            "missing": list(self.missing),
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(
    additional_config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Report:
    """Look at everything. ``additional_config`` is what ``--additional-config`` of vLLM would get.

    Imports the installed vLLM (seconds) to hold it against the contract.
    """
    # Here, because these modules build Findings themselves.
    from vllm_mimo.doctor.gpu import gpu_findings
    from vllm_mimo.doctor.machine import machine_findings
    from vllm_mimo.doctor.plugin import plugin_findings
    from vllm_mimo.doctor.software import software_findings

    return Report(
        (
            *software_findings(),
            *plugin_findings(additional_config, environ),
            *machine_findings(environ),
            *gpu_findings(),
        )
    )
