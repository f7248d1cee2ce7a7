"""Requests that cannot be served get a 4xx that says why, and harm nobody else."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
from openai import OpenAI

from vllm_mimo.serving import metrics
from vllm_mimo.serving.process import ServerProcess
from vllm_mimo.tiny import tasks

USER = {"role": "user", "content": "Repeat: amber"}
WEATHER = tasks.tool_schema("get_weather")


def post(server: ServerProcess, path: str, body: bytes) -> tuple[int, str]:
    request = urllib.request.Request(
        server.url + path, data=body, headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def ask(server: ServerProcess, model: str):
    """Send a chat request made of these fields; the server has to answer a good one afterwards."""

    def send(**fields: Any) -> tuple[int, str]:
        body = {"model": model, "messages": [USER], "max_tokens": 4, "temperature": 0, **fields}
        return post(server, "/v1/chat/completions", json.dumps(body).encode())

    yield send
    status, text = send()
    assert status == 200, text
    assert server.returncode() is None


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": fields}]


def with_parameters(**schema: Any) -> list[dict[str, Any]]:
    return function(name="f", parameters=schema)


def history(call: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation whose second message holds this tool call."""
    calls = [{"id": "call_1", "type": "function", **call}]
    return [
        USER,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    ]


BAD = {
    "context too long": ({"messages": user("word " * 40_000)}, "maximum context length"),
    "max_tokens above the context": ({"max_tokens": 10**6}, "max_tokens=1000000 cannot be greater"),
    "max_tokens zero": ({"max_tokens": 0}, "max_tokens must be at least 1"),
    "max_tokens not a number": ({"max_tokens": "many"}, "max_tokens"),
    "n zero": ({"n": 0}, "n must be at least 1"),
    "n enormous": ({"n": 10**8}, "n must be at most"),
    "temperature negative": ({"temperature": -1}, "temperature must be non-negative"),
    "temperature not a number": ({"temperature": "hot"}, "temperature"),
    "top_p above one": ({"top_p": 2}, r"top_p must be in \(0, 1\]"),
    "stream not a bool": ({"stream": "perhaps"}, "stream"),
    "stop not a string": ({"stop": 5}, "stop"),
    "logit_bias outside the vocabulary": ({"logit_bias": {"9999999": 1}}, "out-of-vocab"),
    "messages empty": ({"messages": []}, "empty conversation"),
    "messages a string": ({"messages": "hello"}, "messages"),
    "message without a role": ({"messages": [{"content": "hello"}]}, "role"),
    "role unknown": ({"messages": [{"role": "wizard", "content": "x"}]}, "role must be.*wizard"),
    "role a number": ({"messages": [{"role": 3, "content": "x"}]}, "role"),
    "content null": ({"messages": user(None)}, "content"),
    "content a number": ({"messages": user(5)}, "content"),
    "content part unknown": ({"messages": user([{"type": "hologram"}])}, "type"),
    "content part without a type": ({"messages": user([{"text": "x"}])}, "type"),
    "tools empty": ({"tools": []}, "tools"),
    "tools a string": ({"tools": "get_weather"}, "tools"),
    "tool without a function": ({"tools": [{"type": "function"}]}, "function"),
    "tool without a name": ({"tools": function(description="x")}, "name"),
    "tool parameters a string": ({"tools": function(name="f", parameters="x")}, "parameters"),
    "tool properties a list": (
        {"tools": with_parameters(type="object", properties=["city"])},
        "items",
    ),
    "tool description a number": (
        {"tools": with_parameters(type="object", properties={"city": {"description": 5}})},
        "str",
    ),
    "tool_choice unknown": ({"tools": WEATHER, "tool_choice": "perhaps"}, "tool_choice"),
    "tool_choice of another function": (
        {"tools": WEATHER, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "does not match any",
    ),
    "tool_choice without tools": ({"tool_choice": "required"}, "tools"),
    "call in the history without a function": ({"messages": history({})}, "function"),
    "call in the history without a name": (
        {"messages": history({"function": {"arguments": "{}"}})},
        "name",
    ),
    "arguments in the history not a string": (
        {"messages": history({"function": {"name": "f", "arguments": {"city": "Oslo"}}})},
        "arguments|string",
    ),
    "response_format unknown": ({"response_format": {"type": "poem"}}, "response_format"),
    "response_format with a broken schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "banana"}},
            }
        },
        "banana",
    ),
    "chat_template_kwargs a string": ({"chat_template_kwargs": "no"}, "chat_template_kwargs"),
    "chat template of the client": ({"chat_template": "{{ messages }}"}, "chat.template"),
}


@pytest.mark.parametrize(("fields", "reason"), BAD.values(), ids=BAD)
def test_bad_request_is_refused_with_the_reason(ask, fields: dict[str, Any], reason: str) -> None:
    import re

    status, text = ask(**fields)
    assert 400 <= status < 500, text
    message = json.loads(text)["error"]["message"]
    assert re.search(reason, message, re.IGNORECASE | re.DOTALL), message


@pytest.mark.parametrize("body", [b'{"model": ', b"[]", b"", b'\xff\xfe{"a": 1}', b"null"])
def test_body_that_is_not_a_json_object(server: ServerProcess, ask, body: bytes) -> None:
    status, text = post(server, "/v1/chat/completions", body)
    assert 400 <= status < 500, text


@pytest.mark.parametrize(
    "prompt", [None, "", [], [-1], [10**6], {"a": 1}], ids=lambda p: json.dumps(p)
)
def test_bad_prompt_of_a_completion(server: ServerProcess, ask, model: str, prompt: Any) -> None:
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 2}).encode()
    status, text = post(server, "/v1/completions", body)
    assert 400 <= status < 500, text


def test_unknown_model_and_the_error_that_openais_client_makes_of_it(client: OpenAI, ask) -> None:
    with pytest.raises(openai.NotFoundError, match="`nope` does not exist"):
        client.chat.completions.create(model="nope", messages=[USER])


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", "3", '"Oslo"', ""])
def test_arguments_in_the_history_that_are_no_json_object_count_as_empty(
    ask, server: ServerProcess, arguments: str
) -> None:
    """vLLM means this: a refusal would end a conversation for good over one bad call of the model.

    The template gets a mapping in any case, never the string.
    """

    def send(text: str) -> int:
        call = {"function": {"name": "get_weather", "arguments": text}}
        status, answer = ask(messages=history(call), tools=WEATHER)
        assert status == 200, answer
        return json.loads(answer)["usage"]["prompt_tokens"]

    assert send(arguments) == send("{}") < send('{"city": "Oslo"}')
    if arguments:
        assert "coercing to an empty object" in server.log()


def test_a_client_that_hangs_up_frees_its_place(
    client: OpenAI, server: ServerProcess, model: str, ask
) -> None:
    stream = client.completions.create(
        model=model,
        prompt="import os",
        max_tokens=20_000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    assert metrics.read(server.url)["vllm:num_requests_running"] == 1
    stream.close()
    deadline = time.monotonic() + 30
    while metrics.read(server.url)["vllm:num_requests_running"]:
        assert time.monotonic() < deadline, "the request still runs"
        time.sleep(0.2)
