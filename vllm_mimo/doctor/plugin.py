"""Whether vLLM will load the plugin, and the configuration it will run with."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from vllm_mimo.config import MimoConfigError, from_sources, provenance
from vllm_mimo.doctor.report import Finding, Status

SECTION = "plugin"
GROUP = "vllm.general_plugins"
NAME = "mimo"


def plugin_findings(
    additional_config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """The entry point, the variable that can keep vLLM from loading it, and the configuration."""
    return [_entry_point(), _allowed(environ), _config(additional_config, environ)]


def _entry_point() -> Finding:
    found = [ep for ep in importlib.metadata.entry_points(group=GROUP) if ep.name == NAME]
    if not found:
        return Finding(
            SECTION,
            "entry point",
            Status.MISSING,
            None,
            "vLLM finds plugins by installed metadata: pip install vllm-mimo "
            "(in a checkout: make setup).",
        )
    try:
        found[0].load()
    except Exception as error:  # vLLM only logs this and goes on without the plugin
        return Finding(
            SECTION,
            "entry point",
            Status.MISSING,
            found[0].value,
            f"It does not load: {type(error).__name__}: {error}",
        )
    return Finding(SECTION, "entry point", Status.OK, found[0].value)


def _allowed(environ: Mapping[str, str]) -> Finding:
    """vLLM loads all plugins if VLLM_PLUGINS is unset, else only those it names."""
    value = environ.get("VLLM_PLUGINS")
    if value is None or NAME in value.split(","):
        return Finding(SECTION, "VLLM_PLUGINS", Status.OK, value)
    return Finding(
        SECTION,
        "VLLM_PLUGINS",
        Status.MISSING,
        value,
        f"vLLM will not load the plugin: unset VLLM_PLUGINS, or add {NAME} to it.",
    )


def _config(additional_config: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Finding:
    try:
        config = from_sources(additional_config, environ)
    except MimoConfigError as error:
        return Finding(SECTION, "config", Status.MISSING, None, str(error))
    sources = provenance(additional_config, environ)
    value = {
        field.name: {"value": getattr(config, field.name), "source": sources[field.name]}
        for field in dataclasses.fields(config)
    }
    if config.enabled:
        return Finding(SECTION, "config", Status.OK, value)
    return Finding(
        SECTION,
        "config",
        Status.WARN,
        value,
        f"The plugin is switched off by {sources['enabled']}: vLLM runs as if it were absent.",
    )
