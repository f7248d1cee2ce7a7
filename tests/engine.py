"""A real vLLM engine in a child process, which runs functions sent to it.

vLLM binds threads and keeps global state, so every engine gets a process of its own. Inside it the
engine core runs in the same process as the API, so that a test can look at and break its KV cache.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_SECONDS = 300
CALL_SECONDS = 600


class EngineFailure(RuntimeError):
    """The engine could not start, or a function raised in it; the message has its traceback."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one request gave."""

    tokens: tuple[int, ...]
    cached: int
    """Prompt tokens that were found in the prefix cache."""


class Engine:
    """`LLM(model, **engine_args)` in a child process. Use it as a context manager.

    Args:
        model: checkpoint folder.
        environ: variables set in the child before vLLM is imported.
        engine_args: of `vllm.LLM`; small and quick defaults fill up what is not given.
    """

    def __init__(
        self, model: Path | str, environ: dict[str, str] | None = None, **engine_args: Any
    ) -> None:
        arguments = {
            "model": str(model),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 4608,
            "max_num_seqs": 8,
            "disable_log_stats": False,
            **engine_args,
        }
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, arguments, environ or {}))
        self.process.start()
        child.close()
        try:
            self._receive(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(llm, *args)` in the child; it and its result must be picklable."""
        self.connection.send((function, args))
        return self._receive(CALL_SECONDS)

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int = 16, **sampling: Any
    ) -> list[Output]:
        """Greedy continuations of prompts given as token ids."""
        return self.run(_generate, [list(p) for p in prompts], max_tokens, sampling)

    def _receive(self, seconds: float) -> Any:
        if not self.connection.poll(seconds):
            raise EngineFailure(f"the engine gave no answer in {seconds} s")
        try:
            failed, value = self.connection.recv()
        except EOFError:
            self.process.join(10)
            raise EngineFailure(f"the engine died (exit code {self.process.exitcode})") from None
        if failed:
            raise EngineFailure(value)
        return value

    def close(self) -> None:
        """End the child; kill it when it does not end by itself."""
        self.connection.close()
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(connection: Connection, arguments: dict[str, Any], environ: dict[str, str]) -> None:
    os.environ.update(
        {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            **environ,
        }
    )
    llm = None
    try:
        from vllm import LLM

        llm = LLM(**arguments)
        connection.send((False, None))
    except BaseException:
        connection.send((True, traceback.format_exc()))
        return
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            break
        try:
            connection.send((False, function(llm, *args)))
        except Exception:
            connection.send((True, traceback.format_exc()))
    llm.llm_engine.engine_core.shutdown()


def _generate(llm: Any, prompts: list[list[int]], max_tokens: int, more: dict) -> list[Output]:
    from vllm import SamplingParams

    sampling = SamplingParams(
        **{"temperature": 0, "ignore_eos": True, "detokenize": False, "max_tokens": max_tokens}
        | more
    )
    requests = [{"prompt_token_ids": p} for p in prompts]
    return [
        Output(tuple(o.outputs[0].token_ids), o.num_cached_tokens or 0)
        for o in llm.generate(requests, sampling, use_tqdm=False)
    ]
