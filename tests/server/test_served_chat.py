"""Chat with the bundled trained model through the official client, against a real server."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from openai import OpenAI

from vllm_mimo.serving import metrics
from vllm_mimo.serving.process import ServerProcess
from vllm_mimo.tiny import checkpoints, tasks

TOOLS = tasks.tool_schema("get_weather", "get_time", "look_up")
RIGHT = 2
"""Of eight answers, how many the bundled model has to get right."""
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@dataclass
class Answer:
    """What a client makes of a reply, whole or streamed."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str | None = None
    usage: Any = None


class Talker:
    """Sends the same request both ways."""

    def __init__(self, client: OpenAI, model: str) -> None:
        self.client, self.model = client, model

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "temperature": 0, "max_tokens": 128, **options}

    def whole(self, **options: Any) -> Answer:
        reply = self.client.chat.completions.create(**self.options(options))
        message = reply.choices[0].message
        return Answer(
            getattr(message, "reasoning", None) or "",
            message.content or "",
            [(c.function.name, c.function.arguments) for c in message.tool_calls or []],
            reply.choices[0].finish_reason,
            reply.usage,
        )

    def streamed(self, **options: Any) -> tuple[Answer, list[Any]]:
        """The answer, and the deltas that it came in."""
        stream = self.client.chat.completions.create(
            **self.options(options), stream=True, stream_options={"include_usage": True}
        )
        answer, deltas, calls = Answer(), [], {}
        for chunk in stream:
            answer.usage = chunk.usage or answer.usage
            for choice in chunk.choices:
                answer.finish = choice.finish_reason or answer.finish
                answer.reasoning += getattr(choice.delta, "reasoning", None) or ""
                answer.content += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    entry = calls.setdefault(call.index, ["", ""])
                    entry[0] += call.function.name or ""
                    entry[1] += call.function.arguments or ""
                deltas.append(choice.delta)
        answer.calls = [(name, arguments) for name, arguments in calls.values()]
        return answer, deltas

    def both(self, **options: Any) -> tuple[Answer, list[Any]]:
        """The streamed answer, after a look that the whole one is the same."""
        answer, deltas = self.streamed(**options)
        whole = self.whole(**options)
        # vLLM drops white space between an answer and a tool call only where it sees both.
        assert whole.content.strip() == answer.content.strip()
        assert (whole.reasoning, whole.calls, whole.finish) == (
            answer.reasoning,
            answer.calls,
            answer.finish,
        )
        return answer, deltas


@pytest.fixture(scope="module")
def talker(client: OpenAI, model: str) -> Talker:
    return Talker(client, model)


@cache
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(checkpoints.trained_folder()))


def prompt_length(messages: list[dict[str, Any]], **options: Any) -> int:
    """Tokens of a request by transformers alone."""
    ids = tokenizer().apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=True, **options
    )
    return len(ids)


@dataclass(frozen=True)
class Recall:
    """A few notes, a question for one of them, and what the training asked for as the answer."""

    messages: list[dict[str, Any]]
    word: str
    content: str


def recalls(count: int, seed: int, notes: int = 4) -> list[Recall]:
    rng, made = random.Random(seed), []
    for _ in range(count):
        places = tasks.notes(rng, notes)
        word = rng.choice(list(places))
        messages = [
            {"role": "system", "content": tasks.notes_text(places)},
            {"role": "user", "content": tasks.recall_question(word)},
        ]
        made.append(Recall(messages, word, f"{word}:{places[word]}"))
    return made


def test_no_flag_was_needed_for_the_parsers(server: ServerProcess) -> None:
    assert "--tool-call-parser" not in server.args
    assert "MiMo checkpoint: using --tool-call-parser mimo" in server.log()


def test_plain_completion(client: OpenAI, model: str) -> None:
    prompt = "import os\nimport sys\n"
    reply = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12)
    assert reply.choices[0].text
    assert reply.usage.prompt_tokens == len(tokenizer()(prompt)["input_ids"])
    assert 1 <= reply.usage.completion_tokens <= 12


def test_reasoning_and_answer_come_apart(talker: Talker) -> None:
    right = thought = 0
    for asked in recalls(8, seed=11):
        answer, deltas = talker.both(messages=asked.messages)
        assert answer.finish == "stop"
        assert not any(mark in answer.reasoning + answer.content for mark in ("<", ">", "|"))
        kinds = "".join(
            ("r" if getattr(delta, "reasoning", None) else "") + ("c" if delta.content else "")
            for delta in deltas
        )
        # One after the other, each in several deltas.
        assert kinds == "r" * kinds.count("r") + "c" * kinds.count("c")
        assert kinds.count("c") > 1
        right += answer.content == asked.content
        thought += answer.reasoning == f"The notes say {asked.content}."
    # So small a model is not always right. Without the notes it would never be.
    assert right >= RIGHT
    assert thought >= RIGHT


def test_without_thinking_there_is_no_reasoning(talker: Talker) -> None:
    right = 0
    for asked in recalls(8, seed=12):
        answer, _ = talker.both(messages=asked.messages, extra_body=NO_THINKING)
        assert answer.reasoning == ""
        right += answer.content == asked.content
    assert right >= RIGHT


def test_repetition_is_streamed_word_by_word(talker: Talker) -> None:
    rng, right = random.Random(13), 0
    for _ in range(8):
        words = rng.choices(tasks.WORDS, k=6)
        messages = [{"role": "user", "content": tasks.repeat_request(words)}]
        answer, deltas = talker.both(messages=messages, extra_body=NO_THINKING)
        assert sum(bool(delta.content) for delta in deltas) >= 3
        right += answer.content == " ".join(words)
    assert right >= RIGHT


@dataclass
class Call:
    """A tool call that the model got right, and where it stands."""

    city: str
    messages: list[dict[str, Any]]
    answer: Answer
    deltas: list[Any]


@pytest.fixture(scope="module")
def call(talker: Talker) -> Call:
    for city in tasks.CITIES:
        messages = [{"role": "user", "content": f"What is the weather in {city}?"}]
        answer, deltas = talker.streamed(messages=messages, tools=TOOLS)
        if [name for name, _ in answer.calls] == ["get_weather"] and city in answer.calls[0][1]:
            return Call(city, messages, answer, deltas)
    pytest.fail("the model called the right tool for none of the cities")


def test_tool_call(talker: Talker, call: Call) -> None:
    whole = talker.whole(messages=call.messages, tools=TOOLS)
    for answer in (call.answer, whole):
        [(name, arguments)] = answer.calls
        assert (name, json.loads(arguments)) == ("get_weather", {"city": call.city})
        assert answer.reasoning == f"I call get_weather for {call.city}."
        assert answer.content.strip() == ""
        assert answer.finish == "tool_calls"
    [first] = [d.tool_calls[0] for d in call.deltas if d.tool_calls and d.tool_calls[0].id]
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")


def test_answer_after_the_tools_result(talker: Talker, call: Call) -> None:
    [(name, arguments)] = call.answer.calls
    done = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    messages = [
        *call.messages,
        {
            "role": "assistant",
            "content": "",
            "reasoning": call.answer.reasoning,
            "tool_calls": [done],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees, sun"},
    ]
    answer, _ = talker.both(messages=messages, tools=TOOLS)
    assert answer.content
    assert answer.reasoning == "The tool has answered."
    # transformers' template wants the arguments as a mapping, and vLLM has made one.
    done["function"] = {"name": name, "arguments": json.loads(arguments)}
    assert answer.usage.prompt_tokens == prompt_length(messages, tools=TOOLS)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_of_the_history_reaches_the_model(talker: Talker, name: str) -> None:
    """MiMo's clients send `reasoning_content`; vLLM's own name is `reasoning`."""
    [asked] = recalls(1, seed=14)
    reply = {"role": "assistant", "content": asked.content, name: "The notes say so."}
    messages = [*asked.messages, reply, asked.messages[1]]
    shorter = [*asked.messages, {**reply, name: ""}, asked.messages[1]]
    usage = talker.whole(messages=messages).usage
    assert usage.prompt_tokens == prompt_length(messages) > prompt_length(shorter)


def test_usage_counts_and_cached_tokens_agree_with_the_metrics(
    talker: Talker, server: ServerProcess
) -> None:
    [asked] = recalls(1, seed=15, notes=100)
    cached = []
    for ask in (talker.whole, lambda **options: talker.streamed(**options)[0]):
        before = metrics.read(server.url)
        usage = ask(messages=asked.messages, max_tokens=8).usage
        counted = metrics.PrefixCache.of(metrics.difference(before, metrics.read(server.url)))
        assert usage.prompt_tokens == counted.queries == prompt_length(asked.messages)
        assert usage.prompt_tokens_details.cached_tokens == counted.hits
        cached.append(counted.hits)
    # All whole blocks of the second prompt; a block is at most a quarter of it.
    assert usage.prompt_tokens > 1000
    assert cached[0] == 0
    assert usage.prompt_tokens * 0.75 < cached[1] < usage.prompt_tokens


def test_metrics_say_what_the_two_pools_found_and_why_not_more(
    talker: Talker, server: ServerProcess
) -> None:
    [asked] = recalls(1, seed=17, notes=100)
    before = metrics.read(server.url)
    for _ in range(2):
        talker.whole(messages=asked.messages, max_tokens=8)
    length, end = prompt_length(asked.messages), time.monotonic() + 20
    name = "vllm_mimo:prefix_cached_tokens_total"
    while True:  # figures arrive with the engine's next report
        grown = metrics.difference(before, metrics.read(server.url))
        if grown[name] or time.monotonic() > end:
            break
        time.sleep(0.2)
    missed = sum(value for key, value in grown.items() if "prefix_missed_tokens" in key)
    assert length * 0.75 < grown[name] < length
    assert grown[name] + missed == 2 * length
    for pool in ("full", "swa"):
        assert 0 <= metrics.read(server.url)[f"vllm_mimo:{pool}_pool_usage"] < 1


def test_requests_at_the_same_time_get_their_own_answers(talker: Talker) -> None:
    asked = recalls(8, seed=16)
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda a: talker.whole(messages=a.messages).content, asked))
    for own, answer in zip(asked, answers, strict=True):
        others = {other.word for other in asked} - {own.word}
        assert answer.partition(":")[0] not in others
    right = sum(answer == own.content for own, answer in zip(asked, answers, strict=True))
    assert right >= RIGHT
