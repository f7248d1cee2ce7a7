"""One server for all tests that can share it: it takes most of a minute to start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import DefaultHttpxClient, OpenAI

from vllm_mimo.serving.process import ServerProcess
from vllm_mimo.tiny import checkpoints

ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; else vLLM's CPU backend takes most of the memory
    "VLLM_NO_USAGE_STATS": "1",
}
"""For every vLLM process that these tests start."""
MEDIA_LIMITS = {"image": 3, "video": 2, "audio": 2}
"""Of the shared server, in one request."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`vllm serve` on the bundled trained model, with cached tokens in its usage reports."""
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    arguments = [
        "--enable-prompt-tokens-details",
        "--limit-mm-per-prompt",
        json.dumps(MEDIA_LIMITS),
    ]
    with ServerProcess(checkpoints.trained_folder(), arguments, env=ENV, log=log) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> OpenAI:
    return OpenAI(
        base_url=server.url + "/v1",
        api_key="none",
        max_retries=0,
        http_client=DefaultHttpxClient(trust_env=False),
    )


@pytest.fixture(scope="session")
def model(client: OpenAI) -> str:
    """Name under which the server serves its model."""
    [only] = client.models.list().data
    return only.id


@pytest.fixture(scope="session")
def random_v25(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint of V2.5's layout. Copy it before you break it."""
    folder = tmp_path_factory.mktemp("random") / "v2.5"
    checkpoints.write_random(folder, "v2.5")
    return folder


@pytest.fixture
def kept_environ() -> Iterator[None]:
    """vLLM's configuration sets variables of this process; put them back."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
