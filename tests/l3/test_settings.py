import pytest

from vllm_mimo.l3 import EngineUnavailable, L3Settings
from vllm_mimo.l3.registry import load_engine


def test_defaults_need_only_a_folder():
    settings = L3Settings.parse({"path": "/data/l3", "gib": 8})
    assert (settings.engine, settings.gib, settings.timeout_s) == ("lmdb", 8, 0.2)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({}, ["'path'", "folder"]),
        ({"path": "/x", "gibs": 1}, ["'gibs'", "gib"]),
        ({"path": "/x", "gib": "8"}, ["'gib'", "a number", "'8'"]),
        ({"path": "/x", "gib": True}, ["'gib'", "a number"]),
        ({"path": "/x", "gib": float("nan")}, ["'gib'"]),
        ({"path": "/x", "gib": 0.001}, ["'gib'", "0.015625 or more"]),
        ({"path": "/x", "io_threads": 1.5}, ["'io_threads'", "whole number"]),
        ({"path": "/x", "io_threads": 0}, ["'io_threads'", "1 to 64"]),
        ({"path": "/x", "timeout_s": -1}, ["'timeout_s'", "0.001 to 60"]),
        ({"path": 3}, ["'path'", "a string or null"]),
        ({"engine": "redis"}, ["'engine'", "lmdb", "module:attribute"]),
    ],
)
def test_an_error_names_the_key_and_what_is_valid(raw, words):
    with pytest.raises(ValueError) as caught:
        L3Settings.parse(raw)
    assert all(word in str(caught.value) for word in ["l3:", *words])


def test_engines_are_found_by_name_or_import_path():
    assert load_engine("lmdb").__name__ == "LmdbEngine"
    assert load_engine("tests.l3.faulty_engine:FaultyEngine").__name__ == "FaultyEngine"
    for name in ("no.such.module:X", "json:NoSuchThing", "json:"):
        with pytest.raises(EngineUnavailable, match="cannot be imported"):
            load_engine(name)
