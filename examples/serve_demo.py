"""Serve a MiMo-V2 model with plain `vllm serve`, talk to it twice, and check what comes back.

    python examples/serve_demo.py               # the tiny trained model of this package, on a CPU
    python examples/serve_demo.py --model DIR   # any other MiMo-V2 checkpoint

Recall from a long system prompt with thinking, a request without thinking, and tool calls, each
streamed. Everything is asked in two rounds: the second has to give the same text, faster, out of
the prefix cache. Then a photograph, a video and speech, shown twice (`demo_media.py`). Exit code 1
when something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import demo_media
from openai import DefaultHttpxClient, OpenAI

from vllm_mimo.doctor import Status
from vllm_mimo.doctor.plugin import plugin_findings
from vllm_mimo.serving.metrics import PrefixCache, difference, read
from vllm_mimo.serving.process import ServerError, ServerProcess
from vllm_mimo.tiny import tasks
from vllm_mimo.tiny.checkpoints import trained_folder

SERVER_ENV = {
    # GiB: vLLM's CPU backend would take most of the machine's memory. GPUs do not look at this.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",  # a demo is nothing to report
}
NOTES = 100
"""Notes in the system prompt: about 1,000 tokens of the tiny model, four blocks of its cache."""


@dataclass
class Reply:
    """One streamed answer, put together again."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0

    def said(self) -> tuple[Any, ...]:
        """What the model wrote, without ids and times: the same in both rounds."""
        return self.reasoning, self.content, [(c["name"], c["arguments"]) for c in self.calls]

    def as_message(self) -> dict[str, Any]:
        """The reply as a message of the next request's history."""
        return {
            "role": "assistant",
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in self.calls
            ],
        }


class Chat:
    """A client of one server that measures each request."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        # The server is on this machine: a proxy that the environment names must not come between.
        direct = DefaultHttpxClient(trust_env=False)
        self.client = OpenAI(base_url=server.url + "/v1", api_key="none", http_client=direct)
        self.model = self.client.models.list().data[0].id

    def ask(self, title: str, messages: list[dict[str, Any]], **options: Any) -> Reply:
        """Send one streamed request at temperature 0, print and return what came back."""
        before = read(self.server.url)
        reply, started = Reply(), time.perf_counter()
        stream = self.client.chat.completions.create(
            model=self.model,
            messages=messages,  # type: ignore[arg-type]
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            **{"max_tokens": 128, **options},
        )
        for chunk in stream:
            if chunk.usage:
                reply.prompt_tokens = chunk.usage.prompt_tokens
            for choice in chunk.choices:
                if not reply.first_s and has_text(choice.delta):
                    reply.first_s = time.perf_counter() - started
                collect(reply, choice.delta)
        reply.total_s = time.perf_counter() - started
        reply.cached_tokens = PrefixCache.of(difference(before, read(self.server.url))).hits
        show(title, reply)
        return reply


def has_text(delta: Any) -> bool:
    return bool(delta.content or getattr(delta, "reasoning", None) or delta.tool_calls)


def collect(reply: Reply, delta: Any) -> None:
    """Add one delta of the stream. `reasoning` is vLLM's addition to OpenAI's fields."""
    reply.reasoning += getattr(delta, "reasoning", None) or ""
    reply.content += delta.content or ""
    for part in delta.tool_calls or []:
        while len(reply.calls) <= part.index:
            reply.calls.append({"id": "", "name": "", "arguments": ""})
        call = reply.calls[part.index]
        call["id"] += part.id or ""
        call["name"] += part.function.name or ""
        call["arguments"] += part.function.arguments or ""


def show(title: str, reply: Reply) -> None:
    print(f"\n  {title}")
    if reply.reasoning:
        print(f"    thinks:  {reply.reasoning.strip()}")
    for call in reply.calls:
        print(f"    calls:   {call['name']} {call['arguments']}")
    if reply.content.strip():
        print(f"    answers: {reply.content.strip()}")
    print(
        f"    first token {reply.first_s * 1000:.0f} ms, all {reply.total_s * 1000:.0f} ms; "
        f"prompt of {reply.prompt_tokens} tokens, {reply.cached_tokens} of them cached",
        flush=True,
    )


def ask_notes(chat: Chat) -> Iterator[Reply]:
    """Questions about a long system prompt, which they share."""
    places = tasks.notes(random.Random(1), NOTES)
    words = list(places)
    for word in (words[NOTES // 10], words[NOTES // 2], words[-NOTES // 10]):
        question = tasks.recall_question(word)
        title = f"{question} (one of {NOTES} notes says {places[word]})"
        system = {"role": "system", "content": tasks.notes_text(places)}
        yield chat.ask(title, [system, {"role": "user", "content": question}])


def ask_repeat(chat: Chat) -> Iterator[Reply]:
    """A request without thinking."""
    question = tasks.repeat_request(random.Random(2).choices(tasks.WORDS, k=12))
    yield chat.ask(
        f"{question} (thinking off)",
        [{"role": "user", "content": question}],
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )


def ask_tools(chat: Chat) -> Iterator[Reply]:
    """A question that needs a tool: the model calls it, we answer as the tool, it goes on."""
    tools = tasks.tool_schema("get_weather", "get_time", "look_up")
    question = "What is the weather in Oslo?"
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    reply = chat.ask(f"{question} (3 tools)", messages, tools=tools)
    yield reply
    if not reply.calls:
        return
    messages.append(reply.as_message())
    result = "-3 degrees, snow"
    for call in reply.calls:
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    yield chat.ask(f"the tool returns: {result}", messages, tools=tools)


SCENARIOS: tuple[Callable[[Chat], Iterator[Reply]], ...] = (ask_notes, ask_repeat, ask_tools)


def one_round(name: str, chat: Chat) -> tuple[list[list[Reply]], PrefixCache]:
    """All scenarios once: their replies, and what the server counted meanwhile."""
    print(f"\n{name}")
    before = read(chat.server.url)
    replies = [list(scenario(chat)) for scenario in SCENARIOS]
    return replies, PrefixCache.of(difference(before, read(chat.server.url)))


def problems(first: list[list[Reply]], second: list[list[Reply]], trained: bool) -> list[str]:
    """What is wrong with the replies; what only a trained model can do is asked of one alone."""
    found = []
    flat = [reply for scenario in first for reply in scenario]
    again = [reply for scenario in second for reply in scenario]
    if any(not any(reply.said()) for reply in flat + again):
        found.append("an answer was empty")
    if [reply.said() for reply in flat] != [reply.said() for reply in again]:
        found.append("the second round's answers differ from the first's")
    for call in (call for reply in flat + again for call in reply.calls):
        try:
            json.loads(call["arguments"])
        except ValueError:
            found.append(f"arguments of {call['name']} are not JSON: {call['arguments']!r}")
    if trained:
        notes, repeat, tools = first
        if not all(reply.reasoning and reply.content for reply in notes):
            found.append("reasoning was not told apart from the answer")
        if any(reply.reasoning or not reply.content for reply in repeat):
            found.append("the model was told not to think, and did")
        if len(tools) < 2 or not tools[-1].content:
            found.append("no tool call was recognised, or the model said nothing after it")
    return found


def table(rounds: dict[str, PrefixCache]) -> None:
    print("\nPrefix cache by the server's own metrics (in tokens)")
    print(f"  {'round':8}{'looked up':>10}{'found':>8}{'share':>8}")
    for name, cache in rounds.items():
        print(f"  {name:8}{cache.queries:10}{cache.hits:8}{cache.rate:8.0%}")


def why(values: dict[str, float]) -> None:
    """The plugin's own figures: what its two KV pools found, and why the rest was computed."""
    reasons = {
        "never cached before": "no_prefix",
        "evicted": "evicted_full",
        "no sliding-window tail": "no_tail",
    }
    prefix = "vllm_mimo:prefix_missed_tokens_"
    if f"{prefix}no_prefix_total" not in values:
        return
    missed = [f"{text} {values[f'{prefix}{name}_total']:.0f}" for text, name in reasons.items()]
    print(f"\nTokens computed, media included: {', '.join(missed)}")


def sees(model: str) -> bool:
    """Whether a checkpoint has towers, as far as its config is at hand."""
    config = Path(model) / "config.json"
    return config.is_file() and bool(json.loads(config.read_text()).get("vision_config"))


def demo(model: str, trained: bool) -> int:
    missing = [finding for finding in plugin_findings() if finding.status is not Status.OK]
    for finding in missing:
        print(f"vllm-mimo is not active: {finding.name}: {finding.advice}", file=sys.stderr)
    if missing:
        return 1
    print(f"$ vllm serve {model}", flush=True)
    started = time.monotonic()
    with ServerProcess(model, env=SERVER_ENV, progress=lambda line: print(line[:100])) as server:
        print(f"ready after {time.monotonic() - started:.0f} s at {server.url}")
        chat = Chat(server)
        first, cache_1 = one_round("First round: cold cache", chat)
        second, cache_2 = one_round("Second round: the same requests again", chat)
        shown, encoder = demo_media.show_twice(chat) if sees(model) else ([], [])
        values = read(server.url)
    table({"first": cache_1, "second": cache_2})
    why(values)
    found = problems(first, second, trained)
    if shown:
        demo_media.table(encoder)
        found += demo_media.problems(shown, encoder)
    if not cache_2.hits:
        found.append("the second round found nothing in the prefix cache")
    for line in found:
        print(f"FAILED: {line}", file=sys.stderr)
    if not found:
        count = sum(len(replies) for replies in second)
        media = f", and {sum(map(len, shown))} about media" if shown else ""
        print(f"ok: {count} answers, the same in both rounds{media}; the server is stopped")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="another checkpoint than the bundled tiny one")
    args = parser.parse_args()
    # `kill` then ends the `with` block like Ctrl-C, and with it the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return demo(args.model or str(trained_folder()), trained=args.model is None)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped, and the server with it", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
