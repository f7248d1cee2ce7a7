"""Host memory and L3 under the replay engine: what each tier adds, by hand and on random chats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.replay.test_engine import (
    BLOCK,
    SIBLINGS,
    Watched,
    WithTokens,
    conversation,
    deployment,
    request,
)
from tests.replay.traces import session, turn, write_lines
from vllm_mimo.cli.main import main
from vllm_mimo.replay.engine import Service
from vllm_mimo.replay.hashes import reusable_tokens
from vllm_mimo.replay.names import make_policy
from vllm_mimo.replay.policy import PolicyError
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.replay.tier_fleet import Fleet
from vllm_mimo.replay.tier_store import RemoteIndex
from vllm_mimo.tiers import repairs
from vllm_mimo.traces.form import TraceRequest

FULL_BYTES, WINDOW_BYTES = 9 * BLOCK * 320 * 2, 39 * BLOCK * 320 * 2
"""Of a block of MiMo-V2.5 at TP8."""

BUDGET = 230 * FULL_BYTES + 100 * WINDOW_BYTES
CHUNK = 512


def gb(full: int, window: int) -> float:
    return (full * FULL_BYTES + window * WINDOW_BYTES) / 1e9


def play(
    requests: Sequence[TraceRequest], hold: bool = False, **options: Any
) -> tuple[list[int], dict[str, int]]:
    """Where each request resumed, and the tiers' figures."""
    keys = {"swa_pool_blocks": 100, "tail_interval": 0} | options
    name = "mimo:" + ",".join(f"{key}={value}" for key, value in keys.items())
    replay = Watched(
        make_policy(name, deployment(chunk_tokens=CHUNK, batches_in_flight=1)),
        BUDGET,
        Service(hold=hold),
    )
    found = replay.play_all(requests)
    assert not any(replay.driver.used_blocks().values())
    for engine in getattr(replay.driver, "engines", ()):
        for host in engine.director.hosts:
            assert host.get_num_free_blocks() == host.num_gpu_blocks - 1
        assert not engine.requests and not engine.director.pins
    return found, dict(replay.driver.tier_figures() or {})


def prompts(count: int, rounds: int = 2) -> list[TraceRequest]:
    """`count` prompts of 100 blocks and a token, over and over."""
    return [
        request(6401, ((1000 * i, 101),), at=10 * (count * r + i))
        for r in range(rounds)
        for i in range(count)
    ]


def test_host_memory_serves_what_the_device_evicted() -> None:
    alone, none = play(prompts(4))
    assert alone == [0] * 8 and not none
    found, figures = play(prompts(4), host_gb=gb(450, 20))
    assert found == [0] * 4 + [6400] * 4
    assert figures["host_tokens"] + figures["device_tokens"] == 4 * 6400
    assert figures["stored_bytes"] == 4 * (100 * FULL_BYTES + 2 * WINDOW_BYTES)
    blocks = figures["host_tokens"] // BLOCK
    assert blocks * FULL_BYTES <= figures["loaded_bytes"] <= blocks * FULL_BYTES + 8 * WINDOW_BYTES


def test_l3_serves_what_host_memory_evicted() -> None:
    host = {"host_gb": gb(250, 10)}
    assert sum(play(prompts(8), **host)[0]) == 0
    found, figures = play(prompts(8), **host, l3_gb=gb(900, 30))
    assert found == [0] * 8 + [6400] * 8
    assert figures["l3_tokens"] >= 5 * 6400
    assert figures["l3_written_bytes"] == 8 * (100 * FULL_BYTES + 2 * WINDOW_BYTES)
    assert figures["l3_read_bytes"] >= figures["l3_tokens"] // BLOCK * FULL_BYTES
    assert figures["l3_evicted"] == 0


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fill in which engine serves each request."""
    route: list[int] = []
    monkeypatch.setattr(Fleet, "engine_of", lambda self, r: self.engines[route[int(r.request_id)]])
    return route


def test_engines_find_each_others_kv_in_l3(routed: list[int]) -> None:
    routed += [0, 1, 0]
    turns = [request(6401, ((1, 101),)), request(6465, ((1, 102),)), request(6529, ((1, 103),))]
    options = {"host_gb": gb(450, 20), "engines": 2}
    assert play(turns, **options)[0] == [0, 0, 6400]
    found, figures = play(turns, **options, l3_gb=gb(450, 20))
    assert found == [0, 6400, 6464]
    assert figures["l3_tokens"] == 6400 + 64


@pytest.mark.parametrize(("keep_alive", "expected"), [("off", 0), ("hits", 6400), ("ends", 6400)])
def test_keep_alive_holds_in_l3_what_is_hot_above(
    keep_alive: str, expected: int, routed: list[int]
) -> None:
    """Engine 0 takes one prompt from its device while others pass through L3."""
    requests, hot = [], request(6401, ((1, 101),))
    for i in range(6):
        requests += [hot, request(3201, ((1000 * (i + 1), 51),))]
    requests.append(hot)
    routed += [0] * 12 + [1]
    found, _ = play(
        [request(r.input_tokens, r.prompt_blocks, at=10 * i) for i, r in enumerate(requests)],
        host_gb=gb(450, 20),
        l3_gb=gb(250, 20),
        keep_alive=keep_alive,
        engines=2,
    )
    assert found[2:12:2] == [6400] * 5
    assert found[12] == expected


@pytest.mark.parametrize(("route", "expected"), [("request", 2), ("session", 1), ("moving", 2)])
def test_routes(route: str, expected: int) -> None:
    policy = make_policy(f"mimo:engines=2,route={route}", deployment())
    fleet = policy.build(BUDGET * 4, lambda: 0.0)
    assert isinstance(fleet, Fleet)
    traces = [request(640, ((1, 10),), at=900.0 * i) for i in range(40)]
    requests = [ReplayRequest(trace, i, BLOCK) for i, trace in enumerate(traces)]
    engines = [fleet.engine_of(request) for request in requests]
    assert len(set(map(id, engines))) == expected
    if route == "moving":
        assert all(a is b for a, b in zip(engines[::2], engines[1::2], strict=True))
    assert fleet.tier_figures() is None


def test_what_the_device_has_goes_back_to_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = [request(4801 + 64 * i, ((1, 76 + i),), at=10 * i) for i in range(6)]
    others = [request(3201, ((1000 * (i + 1), 51),), at=10 * i + 5) for i in range(6)]
    mixed = [request for pair in zip(chat, others, strict=True) for request in pair]

    def backfilled(blocks: int) -> int:
        return play(mixed, host_gb=gb(90, 20), tier_backfill=blocks)[1]["backfilled_blocks"]

    assert backfilled(64) == 0, "host memory is too small to hold what the device has, too"
    monkeypatch.setattr(repairs, "ROOM", 0)
    assert backfilled(0) == 0 < backfilled(64)


def test_tiers_change_nothing_where_the_device_has_room() -> None:
    alone, _ = play(SIBLINGS)
    tiered, figures = play(SIBLINGS, host_gb=gb(450, 20), l3_gb=gb(450, 20))
    assert tiered == alone
    assert figures["host_tokens"] == figures["l3_tokens"] == 0


@pytest.mark.parametrize("engines", [1, 2])
def test_chats_that_hold_their_blocks(engines: int) -> None:
    requests, sequences = conversation(60)
    name = f"mimo:host_gb={gb(300, 60)},l3_gb={gb(2000, 400)},swa_pool_blocks=100"
    policy = make_policy(f"{name},engines={engines}", deployment(chunk_tokens=1024))
    light = Watched(policy, BUDGET, Service())
    real = WithTokens(policy, BUDGET, Service())
    real.tokens = sequences
    found = light.play_all(requests)
    assert real.play_all(requests) == found
    figures = light.driver.tier_figures()
    assert figures is not None and figures == real.driver.tier_figures()
    assert figures["host_tokens"] > 0 and figures["l3_tokens"] > 0
    alone = Watched(
        make_policy("mimo:swa_pool_blocks=100", deployment(chunk_tokens=1024)), BUDGET, Service()
    )
    assert sum(alone.play_all(requests)) < sum(found) <= reusable_tokens(requests, BLOCK)


def test_reusable_tokens() -> None:
    assert reusable_tokens(SIBLINGS, BLOCK) == 960 + 640 + 640
    told = request(5000, ((1, 78),), output=600, told=((79, 9),))
    assert reusable_tokens([told, request(5700, ((1, 89),))], BLOCK) == 87 * BLOCK


def test_the_index_of_l3() -> None:
    full, window = (bytes(8) + bytes(4)), (bytes(8) + (1).to_bytes(4, "big"))
    remote = RemoteIndex(25, (10, 5))
    remote.put([full, window])
    remote.put([b"1" * 8 + bytes(4)])
    assert (remote.used, remote.written, len(remote), remote.evicted) == (25, 25, 3, 0)
    remote.get([full])
    remote.touch([window, b"2" * 12])
    remote.put([b"3" * 8 + bytes(4), full])
    assert full in remote and window in remote and b"1" * 8 + bytes(4) not in remote
    assert remote.figures() == {
        "l3_blocks": 3,
        "l3_evicted": 1,
        "l3_read_bytes": 10,
        "l3_written_bytes": 35,
    }


@pytest.mark.parametrize(
    "options",
    ["host_gb=-1", "host_gb=much", "l3_gb=5", "keep_alive=maybe", "engines=0", "route=near"],
)
def test_options_that_are_none(options: str) -> None:
    with pytest.raises(PolicyError, match=options.partition("=")[0].replace("l3_gb", "L3")):
        make_policy(f"mimo:{options}", deployment())


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = session(turn(0.0, [[1, 15]], 1000, output=5), turn(5.0, [[1, 20]], 1300, output=5))
    trace = str(write_lines(tmp_path / "t.jsonl", chat, chat))
    flags = ["--host-gb", "1", "--l3-gb", "2.5", "--engines", "2", "--no-keep-alive"]
    policies = ["--policy", "mimo", "--policy", "mimo:l3_gb=0,engines=1", "--policy", "vllm"]
    arguments = ["replay", trace, "--budget", "1GB", "--no-backfill", *flags, *policies]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["reusable_tokens"] == 2 * 960
    both, one, vllm = said["results"]
    assert both["recomputed_fraction"] == one["recomputed_fraction"] == 1 - 1920 / 4600
    assert both["tiers"]["l3_written_bytes"] > 0 and "l3_written_bytes" not in one["tiers"]
    assert both["plan"]["engines"] == 2 and vllm["tiers"] is None
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "Reusable by a cache without a limit: 41.7%" in out and "L3 GB read" in out
    with pytest.raises(SystemExit):
        main(["replay", trace, "--host-gb", "many"])
    assert "no number of GB" in capsys.readouterr().err
