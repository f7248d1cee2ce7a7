"""The command line of the server, the parsers of what a model says, and metrics."""

from __future__ import annotations

from vllm_mimo.compat import SERVE_ARGS_MODULES
from vllm_mimo.contract.entry import Entry

_TOOLS = ("vllm.tool_parsers",)
_REASONING = ("vllm.reasoning",)
_LOGGERS = ("vllm.v1.metrics.loggers",)
_SERVE = "vllm_mimo.hooks.serve_defaults"
_EXPORTER = "vllm_mimo.metrics.exporter"

API_ENTRIES = (
    Entry(
        ("vllm.engine.arg_utils",),
        "EngineArgs.from_cli_args",
        used_by=_SERVE,
        why="parser flags of `vllm serve` are filled in before they are read",
        parameters=("args",),
        overrides=True,
    ),
    Entry(
        ("vllm.engine.arg_utils",),
        "EngineArgs",
        used_by=_SERVE,
        why="flags that are read or filled in",
        attributes=("model", "revision", "additional_config", "structured_outputs_config"),
    ),
    Entry(
        SERVE_ARGS_MODULES,
        "validate_parsed_serve_args",
        used_by=_SERVE,
        why="the check of the flags that are filled in",
        parameters=("args",),
    ),
    Entry(
        _TOOLS,
        "ToolParserManager",
        used_by=_SERVE,
        why="the tool-call parser is found by name",
        attributes=("lazy_parsers", "get_tool_parser", "register_lazy_module"),
    ),
    Entry(
        _TOOLS,
        "_TOOL_PARSERS_TO_REGISTER",
        used_by=_SERVE,
        why="the default tool-call parser of MiMo checkpoints",
        keys=("mimo",),
    ),
    Entry(
        _REASONING,
        "ReasoningParserManager",
        used_by=_SERVE,
        why="the reasoning parser is found by name",
        attributes=("lazy_parsers", "get_reasoning_parser", "register_lazy_module"),
    ),
    Entry(
        _REASONING,
        "_REASONING_PARSERS_TO_REGISTER",
        used_by=_SERVE,
        why="the default reasoning parser of MiMo checkpoints",
        keys=("mimo",),
    ),
    Entry(
        _LOGGERS,
        "StatLoggerBase.__init__",
        used_by=_EXPORTER,
        why="vLLM makes our stat logger, one for each engine",
        parameters=("vllm_config", "engine_index"),
        overrides=True,
    ),
    Entry(
        _LOGGERS,
        "StatLoggerBase",
        used_by=_EXPORTER,
        why="base class of our stat logger, and what it replaces",
        attributes=("log_engine_initialized", "record"),
    ),
)
