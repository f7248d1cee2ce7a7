"""Parser flags that a user of `vllm serve` would have to know, filled in for MiMo checkpoints.

vLLM has no hook for this, so `EngineArgs.from_cli_args` is wrapped (docs/patches.md): every server
process goes through it before it reads the flags.
"""

from __future__ import annotations

import functools
import json
import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from vllm_mimo.checkpoints.geometry import ARCHITECTURES
from vllm_mimo.config import from_sources

logger = logging.getLogger("vllm.vllm_mimo")

PARSER = "mimo"
"""Name of MiMo's tool-call and reasoning parsers in vLLM's registries."""


def install() -> None:
    """Wrap `EngineArgs.from_cli_args` once."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.__dict__["from_cli_args"].__func__
    if getattr(original, "_vllm_mimo", False):
        return

    @functools.wraps(original)
    def from_cli_args(cls: type, args: Namespace) -> Any:
        fill_in(args)
        return original(cls, args)

    from_cli_args._vllm_mimo = True  # type: ignore[attr-defined]
    EngineArgs.from_cli_args = classmethod(from_cli_args)


def fill_in(args: Namespace) -> list[str]:
    """Set MiMo's parsers on a server's arguments where the user named none.

    Returns:
        The flags that were filled in, for the log and for tests.
    """
    if not hasattr(args, "tool_call_parser") or not _wanted(args):
        return []
    filled = []
    if not args.tool_call_parser:
        args.tool_call_parser = PARSER
        args.enable_auto_tool_choice = True
        filled += [f"--tool-call-parser {PARSER}", "--enable-auto-tool-choice"]
    outputs = args.structured_outputs_config
    if not getattr(args, "reasoning_parser", "") and not outputs.reasoning_parser:
        args.reasoning_parser = PARSER
        outputs.reasoning_parser = PARSER
        filled.append(f"--reasoning-parser {PARSER}")
    if filled:
        logger.info(
            "MiMo checkpoint: using %s (switch off: --additional-config "
            '\'{"mimo": {"api_defaults": false}}\')',
            " ".join(filled),
        )
    return filled


def _wanted(args: Namespace) -> bool:
    config = from_sources(getattr(args, "additional_config", None))
    return config.enabled and config.api_defaults and is_mimo(args.model, args.revision)


def is_mimo(model: str, revision: str | None = None) -> bool:
    """Whether a local folder or hub repository holds a MiMo-V2 checkpoint.

    False where its config cannot be read: vLLM says why when it tries itself.
    """
    folder = Path(model)
    try:
        if folder.is_dir():
            config = json.loads((folder / "config.json").read_text())
        else:
            from transformers import PreTrainedConfig

            config, _ = PreTrainedConfig.get_config_dict(model, revision=revision)
    except Exception:
        return False
    return any(name in ARCHITECTURES for name in config.get("architectures") or ())
