"""Made-up conversations that a tiny model can learn: recall, repetition, tool calls.

They make the trained model lean on distant context, so that a wrong KV block shows in its output.
Every conversation is a list of OpenAI-style messages (plus tools), to be put through the chat
template. All are drawn from a `random.Random`, so a seed gives the same ones again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

WORDS = (
    "amber anchor apple arrow autumn badge baker basin beacon birch blanket bottle branch brick "
    "bridge bronze bucket button cabin candle canyon carpet castle cedar cherry circle cliff cloud "
    "clover copper coral cotton cradle crystal curtain daisy desert diamond dolphin dragon eagle "
    "ember engine falcon feather ferry field finch flame forest fossil fountain garden garnet "
    "ginger glacier granite harbor hazel helmet hollow honey island ivory jacket jasmine jungle "
    "kettle ladder lantern laurel lemon lilac linen lizard magnet maple marble meadow mirror "
    "monsoon mountain needle nickel oasis ocean olive onyx orchard otter oyster paddle palace "
    "panther paper pebble pepper pigeon pillow planet pocket pony poplar prairie puzzle quartz "
    "rabbit ribbon river rocket saddle saffron sail salmon sapphire shadow shelter silver spruce "
    "summit thistle thunder tiger timber tulip turtle valley velvet violet walnut willow winter"
).split()

CITIES = (
    "Accra Athens Berlin Bogota Cairo Dakar Delhi Dublin Geneva Hanoi Havana Helsinki Istanbul "
    "Jakarta Kyiv Lagos Lima Lisbon London Madrid Manila Mumbai Nairobi Oslo Paris Prague Quito "
    "Rabat Riga Rome Seoul Sofia Tallinn Tokyo Tunis Vienna Warsaw Zagreb"
).split()

SKIES = ("sun", "rain", "snow")

_CITY_PARAMETER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": _CITY_PARAMETER,
    },
    "get_time": {
        "name": "get_time",
        "description": "Local time in a city",
        "parameters": _CITY_PARAMETER,
    },
    "look_up": {
        "name": "look_up",
        "description": "Look a word up in the store",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word"}},
            "required": ["word"],
        },
    },
}


@dataclass(slots=True)
class Conversation:
    """Messages, the tools declared to the model, and whether it may think."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = True


def tool_schema(*names: str) -> list[dict[str, Any]]:
    """The named tools as the OpenAI API declares them."""
    return [{"type": "function", "function": TOOLS[name]} for name in names]


def notes(rng: random.Random, count: int) -> dict[str, str]:
    """`count` things, each with the city where it is."""
    return {word: rng.choice(CITIES) for word in rng.sample(WORDS, count)}


def notes_text(places: dict[str, str]) -> str:
    """The system prompt that carries the notes."""
    return "Notes:\n" + "\n".join(f"- {w}:{p}" for w, p in places.items())


def recall_question(word: str) -> str:
    """The user's question about one thing."""
    return f"Where is the {word}?"


def recall(rng: random.Random, most: int) -> Conversation:
    """Notes in the system prompt, then one to three questions about them."""
    places = notes(rng, rng.randint(4, most))
    thinking = rng.random() < 0.6
    messages: list[dict[str, Any]] = [{"role": "system", "content": notes_text(places)}]
    for word in rng.sample(list(places), min(rng.randint(1, 3), len(places))):
        messages.append({"role": "user", "content": recall_question(word)})
        messages.append(_answer(word, places[word], thinking))
    return Conversation(messages, thinking=thinking)


def _answer(word: str, place: str, thinking: bool) -> dict[str, Any]:
    reply: dict[str, Any] = {"role": "assistant", "content": f"{word}:{place}"}
    if thinking:
        reply["reasoning_content"] = f"The notes say {word}:{place}."
    return reply


def repeat_request(words: list[str]) -> str:
    """The user's request to repeat `words`."""
    return "Repeat: " + " ".join(words)


def repeat(rng: random.Random, most: int) -> Conversation:
    """The user gives words, the assistant gives them back."""
    words = rng.choices(WORDS, k=rng.randint(5, most))
    messages = [
        {"role": "user", "content": repeat_request(words)},
        {"role": "assistant", "content": " ".join(words)},
    ]
    return Conversation(messages, thinking=False)


def weather_question(rng: random.Random, tool: str, subject: str) -> str:
    """A question that `tool` answers about `subject`."""
    forms = {
        "get_weather": ("What is the weather in {}?", "How is the weather in {} now?"),
        "get_time": ("What time is it in {}?", "Tell me the time in {}."),
        "look_up": ("Look up {}.", "What does the store say of {}?"),
    }
    return rng.choice(forms[tool]).format(subject)


def tool_use(rng: random.Random, most: int) -> Conversation:
    """One or more questions, each answered through a tool call and its result."""
    names = rng.sample(list(TOOLS), rng.randint(1, len(TOOLS)))
    messages: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 1 + most // 30)):
        tool = rng.choice(names)
        key = "word" if tool == "look_up" else "city"
        subject = rng.choice(WORDS if tool == "look_up" else CITIES)
        result = {
            "get_weather": f"{rng.randrange(-5, 35)} degrees, {rng.choice(SKIES)}",
            "get_time": f"{rng.randrange(24):02d}:{rng.randrange(60):02d}",
            "look_up": f"{rng.randrange(10_000):04d}",
        }[tool]
        call = {"function": {"name": tool, "arguments": {key: subject}}}
        messages += [
            {"role": "user", "content": weather_question(rng, tool, subject)},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": f"I call {tool} for {subject}.",
                "tool_calls": [call],
            },
            {"role": "tool", "content": result},
            {
                "role": "assistant",
                "content": f"{subject}: {result}.",
                "reasoning_content": "The tool has answered.",
            },
        ]
    return Conversation(messages, tools=tool_schema(*names))


def draw(rng: random.Random, most: int) -> Conversation:
    """Any of the tasks; `most` bounds the number of facts or words in one conversation."""
    task = rng.choices((recall, repeat, tool_use), weights=(5, 3, 3))[0]
    return task(rng, most)
