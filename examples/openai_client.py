"""Talk to a running server with the official OpenAI client: reasoning, streaming, tools.

    vllm serve MODEL                                                # in another terminal
    python examples/openai_client.py --base-url http://localhost:8000/v1

MODEL is any MiMo-V2 checkpoint; the tiny trained one of this package is at the path that
`python -c "from vllm_mimo.tiny.checkpoints import trained_folder as f; print(f())"` prints. The
questions are of the kinds that it was trained on.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from openai import OpenAI

NOTES = "Notes:\n- amber:Lima\n- cedar:Oslo\n- falcon:Cairo\n- walnut:Prague"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str) -> str:
    """What a real tool would look up."""
    return {"Oslo": "-3 degrees, snow"}.get(city, "21 degrees, sun")


def stream_with_reasoning(client: OpenAI, model: str) -> None:
    """Reasoning and answer come as separate fields of the stream's deltas."""
    messages = [
        {"role": "system", "content": NOTES},
        {"role": "user", "content": "Where is the falcon?"},
    ]
    stream = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=200, stream=True
    )
    shown = ""
    for chunk in stream:
        delta = chunk.choices[0].delta
        for kind in ("reasoning", "content"):
            if text := getattr(delta, kind, None):
                print(text if kind == shown else f"\n{kind}: {text}", end="", flush=True)
                shown = kind
    print()


def without_thinking(client: OpenAI, model: str) -> None:
    """`enable_thinking` is an option of MiMo's chat template."""
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Repeat: amber falcon river pebble walnut"}],
        temperature=0,
        max_tokens=200,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    print(f"\nwithout thinking: {reply.choices[0].message.content}")


def with_a_tool(client: OpenAI, model: str) -> None:
    """The model asks for a tool, gets its result, and answers.

    Hand the reasoning back with the call: MiMo's template shows it to the model again.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options = {"model": model, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    message = client.chat.completions.create(messages=messages, **options).choices[0].message
    if not message.tool_calls:
        print(f"\nno tool call: {message.content}")
        return
    messages.append(message.model_dump(include={"role", "content", "tool_calls", "reasoning"}))
    for call in message.tool_calls:
        print(f"\ntool call: {call.function.name} {call.function.arguments}")
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    reply = client.chat.completions.create(messages=messages, **options)
    print(f"after the tool: {reply.choices[0].message.content}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base-url", default="http://localhost:8000/v1")
    args = parser.parse_args()
    client = OpenAI(base_url=args.base_url, api_key="none")
    model = client.models.list().data[0].id
    print(f"{model} at {args.base_url}")
    stream_with_reasoning(client, model)
    without_thinking(client, model)
    with_a_tool(client, model)


if __name__ == "__main__":
    main()
