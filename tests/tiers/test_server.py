"""`vllm serve` with host memory: prompts that the device has evicted come back from there."""

from __future__ import annotations

import json
import random
from pathlib import Path

from openai import DefaultHttpxClient, OpenAI

from tests.server.conftest import ENV
from vllm_mimo.serving import metrics
from vllm_mimo.serving.process import ServerProcess
from vllm_mimo.tiny import checkpoints


def test_evicted_prompts_come_back_from_host_memory(tmp_path: Path) -> None:
    rng = random.Random(3)
    prompts = [rng.choices(range(2000), k=700) for _ in range(6)]
    arguments = [
        "--enable-prompt-tokens-details",
        "--max-model-len=1024",
        "--num-gpu-blocks-override=40",
        "--additional-config",
        json.dumps({"mimo": {"host_gib": 0.1}}),
    ]
    log = tmp_path / "vllm.log"
    with ServerProcess(checkpoints.trained_folder(), arguments, env=ENV, log=log) as server:
        client = OpenAI(
            base_url=server.url + "/v1",
            api_key="none",
            max_retries=0,
            http_client=DefaultHttpxClient(trust_env=False),
        )
        [model] = client.models.list().data

        def ask(prompt: list[int]) -> tuple[str, int]:
            reply = client.completions.create(
                model=model.id, prompt=prompt, max_tokens=80, temperature=0
            )
            details = reply.usage.prompt_tokens_details
            return reply.choices[0].text, (details.cached_tokens or 0) if details else 0

        first = [ask(prompt) for prompt in prompts]
        again = [ask(prompt) for prompt in prompts]
        figures = metrics.read(server.url)
    assert [text for text, _ in again] == [text for text, _ in first]
    assert not any(cached for _, cached in first)
    assert all(cached >= 640 for _, cached in again[:4]), "not in the usage"
    assert figures["vllm_mimo:host_hit_requests_total"] >= 4
    assert figures["vllm_mimo:host_hit_tokens_total"] >= 4 * 640
    assert figures["vllm_mimo:host_loaded_full_bytes_total"] > 0
    assert figures["vllm_mimo:host_stored_swa_bytes_total"] > 0
    assert figures["vllm_mimo:tier_load_seconds_total"] > 0
    assert 0 < figures["vllm_mimo:host_full_usage"] <= 1
