"""The configuration: sources, precedence, and refusals that say what to do."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Literal, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mimo import config
from vllm_mimo.config import ENV_VAR, MimoConfig, MimoConfigError, from_sources, from_vllm_config

KEYS = [field.name for field in dataclasses.fields(MimoConfig) if field.name != "l3"]
"""All but the one that is an object with keys of its own."""
HINTS = get_type_hints(MimoConfig)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=4), children, max_size=2)
    ),
    max_leaves=3,
)


NUMBERS = {
    "max_image_pixels": (1, 10**12),
    "video_decode_threads": (1, 10**12),
    "swa_pool_fraction": (0.001, 0.95),
    "swa_pool_blocks": (2, 10**12),
    "swa_block_size": (1, 10**12),
    "tail_interval": (0, 10**12),
    "tail_dense_until": (0, 10**12),
    "shadow_fraction": (0.0, 1.0),
    "host_gib": (0.0, 10**6),
    "host_swa_fraction": (0.001, 0.95),
    "tier_backfill": (0, 10**12),
}
"""Keys that are numbers, with the values that are tried; the first is the smallest allowed."""


def kinds(key: str) -> set[type]:
    """The types in a key's annotation, without None."""
    return set(get_args(HINTS[key]) or (HINTS[key],)) - {type(None)}


def valid_values(key: str) -> st.SearchStrategy:
    nothing = st.none() if type(None) in get_args(HINTS[key]) else st.nothing()
    if key in NUMBERS:
        low, high = NUMBERS[key]
        return nothing | (st.floats if float in kinds(key) else st.integers)(low, high)
    return st.booleans() if HINTS[key] is bool else st.sampled_from(get_args(HINTS[key]))


def fits(key: str, value: object) -> bool:
    if key not in NUMBERS:
        return type(value) is bool if HINTS[key] is bool else value in get_args(HINTS[key])
    if value is None:
        return type(None) in get_args(HINTS[key])
    low, high = NUMBERS[key]
    most = high if float in kinds(key) else float("inf")
    return is_number(key, value) and low <= value <= most


def is_number(key: str, value: object) -> bool:
    return type(value) is int or (type(value) is float and float in kinds(key))


layers = st.fixed_dictionaries({}, optional={key: valid_values(key) for key in KEYS})


def mimo(**keys: object) -> dict[str, object]:
    return {"mimo": keys}


def test_defaults_without_any_source() -> None:
    assert from_sources(None, {}) == from_sources({}, {ENV_VAR: " "}) == MimoConfig()
    assert MimoConfig() == MimoConfig(
        enabled=True, api_defaults=True, strict_checkpoint=True, fp8_on_cpu="auto"
    )


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MimoConfig().enabled = False  # type: ignore[misc]


@given(env=layers, args=layers)
def test_arguments_win_over_the_environment_key_by_key(env: dict, args: dict) -> None:
    environ = {ENV_VAR: json.dumps(env)}
    found = from_sources({"mimo": args, "other_plugin": {"enabled": 3}}, environ)
    assert dataclasses.asdict(found) == {**dataclasses.asdict(MimoConfig()), **env, **args}
    for key, source in config.provenance({"mimo": args}, environ).items():
        expected = config.FROM_ARGS if key in args else config.FROM_ENV if key in env else "default"
        assert source == expected


@given(key=st.text(max_size=30).filter(lambda text: text not in KEYS), value=JSON_VALUES)
def test_unknown_keys_are_refused_by_name_with_the_valid_ones(key: str, value: object) -> None:
    for additional, environ, source in (
        ({"mimo": {key: value}}, {}, config.FROM_ARGS),
        ({}, {ENV_VAR: json.dumps({key: value})}, ENV_VAR),
    ):
        with pytest.raises(MimoConfigError) as caught:
            from_sources(additional, environ)
        message = str(caught.value)
        assert repr(key) in message
        assert source in message
        assert all(name in message for name in KEYS)


@given(key=st.sampled_from(KEYS), value=JSON_VALUES)
def test_a_value_is_taken_exactly_when_its_type_fits(key: str, value: object) -> None:
    hint = HINTS[key]
    if fits(key, value):
        assert getattr(from_sources(mimo(**{key: value}), {}), key) == value
        return
    with pytest.raises(MimoConfigError) as caught:
        from_sources(mimo(**{key: value}), {})
    message = str(caught.value)
    assert repr(key) in message
    assert repr(value) in message
    if key in NUMBERS and is_number(key, value):
        assert f"must be {NUMBERS[key][0]:g} " in message
    else:
        assert config.describe_type(hint) in message


def test_the_nearest_key_is_suggested() -> None:
    with pytest.raises(MimoConfigError, match=r"'strict_chekpoint' \(did you mean 'strict_ch"):
        from_sources(mimo(strict_chekpoint=False), {})
    with pytest.raises(MimoConfigError) as caught:
        from_sources(mimo(zzzzzz=1), {})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("section", [[], "enabled", 1, True])
def test_a_section_that_is_no_object_is_refused(section: object) -> None:
    with pytest.raises(MimoConfigError, match="must be a JSON object"):
        from_sources({"mimo": section}, {})


def test_the_variable_may_name_a_file(tmp_path) -> None:
    path = tmp_path / "mimo.json"
    path.write_text('{"fp8_on_cpu": "native"}', encoding="utf-8")
    assert from_sources(None, {ENV_VAR: str(path)}).fp8_on_cpu == "native"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"enabled": tru}', "not valid JSON"),
        ("[1]", "must be a JSON object, got list"),
        (b"\xff\xfe", "neither a JSON object nor a readable file"),
        (None, "neither a JSON object nor a readable file"),
    ],
)
def test_a_bad_file_is_refused_by_its_path(tmp_path, content, message: str) -> None:
    path = tmp_path / "mimo.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MimoConfigError, match=message) as caught:
        from_sources(None, {ENV_VAR: str(path)})
    assert str(path) in str(caught.value)


@given(text=st.text(max_size=60))
def test_any_text_in_the_variable_gives_a_config_or_our_error(text: str) -> None:
    try:
        assert isinstance(from_sources(None, {ENV_VAR: text}), MimoConfig)
    except MimoConfigError as error:
        assert ENV_VAR in str(error)


def test_is_read_from_a_vllm_config() -> None:
    vllm_config = SimpleNamespace(additional_config=mimo(enabled=False))
    assert from_vllm_config(vllm_config, {}).enabled is False
    # Some platforms put an object of their own there.
    opaque = SimpleNamespace(additional_config=SimpleNamespace(mimo={"enabled": False}))
    assert from_vllm_config(opaque, {}).enabled is True


def test_later_keys_may_use_every_documented_type(monkeypatch) -> None:
    """Adding a field is all there is to adding a key: numbers, null and choices are checked too."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Later(MimoConfig):
        ratio: float = config.option(0.5, "A number.")
        size: int | None = config.option(None, "A size in GiB.")
        mode: Literal["a", "b"] | None = config.option(None, "A choice.")

    monkeypatch.setitem(config.__dict__, "MimoConfig", Later)
    found = config.from_sources(mimo(ratio=1, size=3, mode="b"), {})
    assert (found.ratio, found.size, found.mode) == (1, 3, "b")
    for bad in ({"ratio": "1"}, {"ratio": True}, {"size": 1.5}, {"size": True}, {"mode": "c"}):
        with pytest.raises(MimoConfigError, match=repr(next(iter(bad)))):
            config.from_sources({"mimo": bad}, {})
    with pytest.raises(MimoConfigError, match="must be an integer or null, got '3'"):
        config.from_sources(mimo(size="3"), {})


@pytest.mark.parametrize(
    ("l3", "named"),
    [
        ("/data/kv", "'l3' must be an object or null"),
        ({"path": "/data/kv", "size": 3}, "l3: unknown key 'size'"),
        ({"gib": 64}, "l3: 'path' is missing"),
    ],
)
def test_settings_of_the_third_tier_are_checked_with_the_others(l3: object, named: str) -> None:
    with pytest.raises(MimoConfigError, match=named):
        from_sources(mimo(l3=l3), {})
    good = {"path": "/data/kv", "gib": 3}
    assert from_sources(mimo(l3=good), {}).l3 == good
