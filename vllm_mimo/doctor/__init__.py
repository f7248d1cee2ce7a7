"""Findings about the software and the machine: what runs, what is missing, how to get it."""

from __future__ import annotations

from vllm_mimo.doctor.report import Finding, Report, Status, examine

__all__ = ["Finding", "Report", "Status", "examine"]
