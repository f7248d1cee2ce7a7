"""The tiny checkpoints' chat template, through transformers, against text written out by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from vllm_mimo.tiny import tasks
from vllm_mimo.tiny.checkpoints import trained_folder
from vllm_mimo.tiny.tokenizer import chat_template

DEFAULT_SYSTEM = (
    "<|im_start|>system\nYou are MiMo, a helpful AI assistant engineered by Xiaomi.<|im_end|>"
)
HELLO = {"role": "user", "content": "Hello"}
SAID_HELLO = "<|im_start|>user\nHello<|im_end|>"


@cache
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(trained_folder()))


def render(*messages: dict[str, Any], generate: bool = False, **options: Any) -> str:
    return tokenizer().apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=generate, **options
    )


def test_the_bundled_checkpoint_carries_this_template() -> None:
    assert (trained_folder() / "chat_template.jinja").read_text() == chat_template()


def test_a_user_message_gets_the_default_system_prompt() -> None:
    assert render(HELLO) == DEFAULT_SYSTEM + SAID_HELLO


def test_a_system_message_replaces_the_default_one() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert render(system, HELLO) == "<|im_start|>system\nBe brief.<|im_end|>" + SAID_HELLO


def test_an_empty_system_message_stays_empty() -> None:
    assert render({"role": "system", "content": ""}, HELLO) == (
        "<|im_start|>system\n<|im_end|>" + SAID_HELLO
    )


def test_a_later_system_message_keeps_its_place() -> None:
    later = {"role": "system", "content": "Now in French."}
    assert render(HELLO, later) == (
        DEFAULT_SYSTEM + SAID_HELLO + "<|im_start|>system\nNow in French.<|im_end|>"
    )


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"enable_thinking": True}, "<|im_start|>assistant\n"),
        ({"enable_thinking": False}, "<|im_start|>assistant\n<think></think>"),
    ],
)
def test_the_generation_prompt_closes_thinking_that_is_off(
    options: dict[str, Any], prompt: str
) -> None:
    assert render(HELLO, generate=True, **options) == DEFAULT_SYSTEM + SAID_HELLO + prompt


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_of_the_history_is_kept(name: str) -> None:
    """MiMo's clients send it back as `reasoning_content`, vLLM's own field is `reasoning`."""
    reply = {"role": "assistant", "content": "Hi.", name: "A greeting."}
    said = "<|im_start|>assistant\n<think>A greeting.</think>Hi.<|im_end|>"
    assert render(HELLO, reply, HELLO) == DEFAULT_SYSTEM + SAID_HELLO + said + SAID_HELLO


def test_reasoning_of_the_history_can_be_left_out_but_for_the_last_message() -> None:
    reply = {"role": "assistant", "content": "Hi.", "reasoning": "A greeting."}
    short = "<|im_start|>assistant\nHi.<|im_end|>"
    full = "<|im_start|>assistant\n<think>A greeting.</think>Hi.<|im_end|>"
    assert render(HELLO, reply, HELLO, reply, keep_all_reasoning=False) == (
        DEFAULT_SYSTEM + SAID_HELLO + short + SAID_HELLO + full
    )


def test_a_reply_without_reasoning_has_an_empty_block() -> None:
    assert render(HELLO, {"role": "assistant", "content": "Hi."}) == (
        DEFAULT_SYSTEM + SAID_HELLO + "<|im_start|>assistant\n<think></think>Hi.<|im_end|>"
    )


def test_tools_are_declared_in_the_system_message() -> None:
    fancy = {
        "name": "mix",
        "parameters": {
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["a", "b"]},
                "size": {"type": ["integer", "null"], "description": "In mm"},
            },
        },
    }
    tools = [*tasks.tool_schema("get_time"), {"type": "function", "function": fancy}]
    assert render({"role": "system", "content": "Be brief."}, tools=tools) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\n<tools>"
        "\n<function>\n<name>get_time</name>"
        "\n<description>Local time in a city</description>"
        "\n<parameters>"
        "\n<parameter>\n<name>city</name>\n<type>string</type>"
        "\n<description>Name of the city</description>\n</parameter>"
        '\n<required>["city"]</required>'
        "\n</parameters>\n</function>"
        "\n<function>\n<name>mix</name>"
        "\n<parameters>"
        '\n<parameter>\n<name>mode</name>\n<type>string</type>\n<enum>["a", "b"]</enum>'
        "\n</parameter>"
        '\n<parameter>\n<name>size</name>\n<type>["integer", "null"]</type>'
        "\n<description>In mm</description>\n</parameter>"
        "\n</parameters>\n</function>"
        "\n</tools>\n\nCall a function like this:\n<tool_call>\n<function=NAME>\n"
        "<parameter=KEY>VALUE</parameter>\n</function>\n</tool_call><|im_end|>"
    )


def test_tools_come_after_the_default_system_prompt() -> None:
    text = render(HELLO, tools=tasks.tool_schema("get_time"))
    assert text.startswith(DEFAULT_SYSTEM.removesuffix("<|im_end|>") + "\n\n# Tools\n\n<tools>")


def test_tool_calls_and_results_of_the_history() -> None:
    def function(name: str, **arguments: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "arguments": arguments}}

    calls = [function("get_time", city="Oslo", hours=24, exact=True), function("ping")]
    reply = {"role": "assistant", "content": "One moment.", "reasoning": "r", "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "1", "content": "12:30"}
    assert render(HELLO, reply, result) == (
        DEFAULT_SYSTEM + SAID_HELLO + "<|im_start|>assistant\n<think>r</think>One moment."
        "<tool_call>\n<function=get_time>\n<parameter=city>Oslo</parameter>\n"
        "<parameter=hours>24</parameter>\n<parameter=exact>true</parameter>\n"
        "</function>\n</tool_call>"
        "<tool_call>\n<function=ping>\n</function>\n</tool_call><|im_end|>"
        "<|im_start|>tool\n<tool_response>\n12:30\n</tool_response>\n<|im_end|>"
    )


@pytest.mark.parametrize("content", [None, ""])
def test_a_call_without_text(content: str | None) -> None:
    call = {"type": "function", "function": {"name": "ping", "arguments": {}}}
    reply = {"role": "assistant", "content": content, "tool_calls": [call]}
    assert render(HELLO, reply).endswith(
        "<think></think><tool_call>\n<function=ping>\n</function>\n</tool_call><|im_end|>"
    )


def test_parts_of_text_images_videos_and_sound() -> None:
    parts = [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image"},
        {"type": "video"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "text", "text": "What is it?"},
    ]
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert render({"role": "user", "content": parts}) == (
        f"{DEFAULT_SYSTEM}<|im_start|>user\nLook: {image}{image}"
        "<|vision_start|><|video_pad|><|vision_end|>"
        "<|mimo_audio_start|><|audio_pad|><|mimo_audio_end|>What is it?<|im_end|>"
    )


def test_a_role_that_the_model_does_not_know_is_refused() -> None:
    import jinja2

    with pytest.raises(jinja2.TemplateError, match="wizard"):
        render(HELLO, {"role": "wizard", "content": "Abracadabra"})


def test_control_tokens_are_one_id_each() -> None:
    """A prompt that falls apart into letters would still read right as text."""
    ids = tokenizer().apply_chat_template(
        [HELLO], tokenize=True, return_dict=False, add_generation_prompt=True, enable_thinking=False
    )
    for token, count in (("<|im_start|>", 3), ("<|im_end|>", 2), ("<think>", 1), ("</think>", 1)):
        assert ids.count(tokenizer().convert_tokens_to_ids(token)) == count
