"""vLLM's parsers `mimo`, which the plugin turns on, read what a MiMo model writes.

The text goes through the bundled tokenizer and vLLM's own composition of both parsers, whole (as in
a plain reply) and token by token (as in a streamed one).
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from vllm_mimo.hooks.serve_defaults import PARSER
from vllm_mimo.tiny.checkpoints import bundled_tokenizer, trained_folder

TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "sure": {"type": "boolean"},
                "options": {"type": "object"},
            },
        },
    },
}
STEPS = pytest.mark.parametrize("step", [1, 3, 10_000], ids=lambda n: f"{n}-tokens")
Parsed = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, content, and (name, arguments) of each call."""


@cache
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(trained_folder()))


@cache
def raw() -> Tokenizer:
    return bundled_tokenizer()


def make_parser(thinking: bool) -> tuple[Any, Any, list[int]]:
    """The parser of one request, the request, and its prompt's ids, as the server makes them."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager

    options = {} if thinking else {"enable_thinking": False}
    messages = [{"role": "user", "content": "Hello"}]
    prompt = tokenizer().apply_chat_template(
        messages, tools=[TOOL], tokenize=False, add_generation_prompt=True, **options
    )
    request = ChatCompletionRequest(model="mimo", messages=messages, tools=[TOOL])
    parser_class = ParserManager.get_parser(
        tool_parser_name=PARSER,
        reasoning_parser_name=PARSER,
        enable_auto_tools=True,
        tokenizer=tokenizer(),
    )
    parser = parser_class(tokenizer(), request.tools, chat_template_kwargs=options)
    prompt_ids = raw().encode(prompt).ids
    parser.set_prompt_token_ids(prompt_ids)
    return parser, parser.adjust_request(request), prompt_ids


def whole(text: str, thinking: bool = True) -> Parsed:
    parser, request, _ = make_parser(thinking)
    reasoning, content, calls = parser.parse(
        text,
        request,
        enable_auto_tools=True,
        model_output_token_ids=raw().encode(text).ids,
    )
    return reasoning or "", content or "", [(c.name, c.arguments) for c in calls or []]


def streamed(text: str, step: int, thinking: bool = True) -> Parsed:
    """The deltas of `step` tokens each, put together as a client does."""
    parser, request, prompt_ids = make_parser(thinking)
    ids, decoder = raw().encode(text).ids, DecodeStream(skip_special_tokens=False)
    reasoning, content, calls = "", "", {}
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        text = "".join(decoder.step(raw(), i) or "" for i in part)
        finished = start + step >= len(ids)
        delta = parser.parse_delta(text, part, request, prompt_ids, finished=finished)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls or []:
            entry = calls.setdefault(call.index, ["", ""])
            entry[0] += call.function.name or ""
            entry[1] += call.function.arguments or ""
    return reasoning, content, [(name, arguments) for name, arguments in calls.values()]


def call(**parameters: str) -> str:
    """A tool call as MiMo writes it."""
    inner = "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function=write>\n{inner}</function>\n</tool_call>"


@STEPS
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>Six times seven.</think>42", ("Six times seven.", "42")),
        ("<think>a\n\n</think>b<|im_end|>", ("a\n\n", "b")),
        ("<think></think>42", ("", "42")),
        ("<think>cut off by max_tok", ("cut off by max_tok", "")),
        ("<think>ü 日本 😀</think>é 日本語 🎉", ("ü 日本 😀", "é 日本語 🎉")),
        (
            "<think>a</think>1 < 2, <b>x</b> and <parameter=y>",
            ("a", "1 < 2, <b>x</b> and <parameter=y>"),
        ),
    ],
)
def test_reasoning_is_told_apart_from_the_answer(
    text: str, expected: tuple[str, str], step: int
) -> None:
    assert whole(text) == (*expected, [])
    assert streamed(text, step) == (*expected, [])


@STEPS
def test_without_thinking_all_is_answer(step: int) -> None:
    # The template has closed the block already, so the model does not write a </think>.
    assert whole("42, I think", thinking=False) == ("", "42, I think", [])
    assert streamed("42, I think", step, thinking=False) == ("", "42, I think", [])
    _, content, [(name, arguments)] = streamed(call(path="a"), step, thinking=False)
    assert (content, name, json.loads(arguments)) == ("", "write", {"path": "a"})


@STEPS
@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "",
        "two\nlines\n",
        "\n  indented\n\n",
        "ü 日本 😀",
        '{"looks": ["like", "JSON"]}',
        "17",
        "true",
        'quotes " and \\ and </param> <tag> if a < b: c > d',
        "x" * 500,
    ],
)
def test_string_parameters_are_kept_verbatim(value: str, step: int) -> None:
    text = "<think>I write.</think>" + call(path="notes.txt", text=value)
    for reasoning, content, [(name, arguments)] in (whole(text), streamed(text, step)):
        assert (reasoning, content, name) == ("I write.", "", "write")
        assert json.loads(arguments) == {"path": "notes.txt", "text": value}


@STEPS
def test_parameters_get_the_types_of_the_schema(step: int) -> None:
    text = "<think>a</think>" + call(count="3", sure="true", options='{"k": [1]}', path="3")
    for _, _, [(_, arguments)] in (whole(text), streamed(text, step)):
        assert json.loads(arguments) == {
            "count": 3,
            "sure": True,
            "options": {"k": [1]},
            "path": "3",
        }


@STEPS
@pytest.mark.parametrize("between", ["", "\n"])
def test_two_calls_in_a_row_after_a_sentence(between: str, step: int) -> None:
    text = f"<think>a</think>I write twice.{call(path='x')}{between}{call(path='y')}<|im_end|>"
    for reasoning, content, calls in (whole(text), streamed(text, step)):
        assert (reasoning, content.strip()) == ("a", "I write twice.")
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [
            ("write", {"path": "x"}),
            ("write", {"path": "y"}),
        ]


@STEPS
def test_a_call_without_parameters_has_an_empty_object(step: int) -> None:
    text = "<think>a</think>" + call()
    assert whole(text) == streamed(text, step) == ("a", "", [("write", "{}")])


@STEPS
@pytest.mark.parametrize("cut", ["<parameter=", ">notes", "</parameter>", "\n</function"])
def test_a_call_that_max_tokens_cuts_off_does_not_spill_into_the_answer(
    cut: str, step: int
) -> None:
    text = "<think>a</think>" + call(path="notes.txt")
    text = text[: text.index(cut) + len(cut)]
    reasoning, content, [(name, arguments)] = whole(text)
    assert (reasoning, content, name) == ("a", "", "write")
    assert json.loads(arguments).items() <= {"path": "notes.txt"}.items()
    reasoning, content, [(name, arguments)] = streamed(text, step)
    assert (reasoning, content, name) == ("a", "", "write")
    assert '{"path": "notes.txt"}'.startswith(arguments.removesuffix("}").removesuffix('"'))
