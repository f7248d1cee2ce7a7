"""The engine over real managers: hits known by hand, waiting, preemption, real requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from vllm_mimo.replay.compare import compare
from vllm_mimo.replay.deployment import Deployment, load_geometry
from vllm_mimo.replay.engine import Replay, Service
from vllm_mimo.replay.names import make_policy
from vllm_mimo.replay.policy import Lookup, PolicyError
from vllm_mimo.replay.request import ReplayRequest
from vllm_mimo.traces.form import BlockRuns, TraceRequest

BLOCK = 64
BLOCK_BYTES = 9 * BLOCK * 320 * 2
"""Of vLLM's pool for MiMo-V2.5 at TP8: 9 layers of one KV head of 192 + 128 in bf16."""


def deployment(**more: Any) -> Deployment:
    return Deployment(load_geometry("MiMo-V2.5", 8), 8, more.pop("max_model_len", 8192), **more)


def request(
    tokens: int,
    prompt: BlockRuns,
    output: int = 1,
    told: BlockRuns = (),
    at: float = 0.0,
    duration_s: float | None = None,
) -> TraceRequest:
    return TraceRequest(at, "s", tokens, output, BLOCK, prompt, told, duration_s)


class Watched(Replay):
    """Remembers what each admitted lookup found."""

    def play_all(self, requests: Sequence[TraceRequest]) -> list[int]:
        self.found: list[int] = []
        for _ in self.play(requests):
            pass
        return self.found

    def _count(self, request: ReplayRequest, cached: int, resume: int) -> None:
        self.found.append(resume)
        super()._count(request, cached, resume)


def hits(policy: str, requests: Sequence[TraceRequest], blocks: int = 2000) -> list[int]:
    replay = Watched(make_policy(policy, deployment()), blocks * BLOCK_BYTES, Service(hold=False))
    return replay.play_all(requests)


SIBLINGS = [
    request(1000, ((1, 15),)),
    request(1300, ((1, 20),)),
    # Parts after 10 blocks, where no tail is kept: found on second sight.
    request(1000, ((1, 10), (101, 5))),
    request(1000, ((1, 10), (201, 5))),
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("vllm", [0, 960, 0, 640]),
        ("vllm:0", [0, 960, 0, 640]),
        ("vllm:512", [0, 960, 512, 640]),
        ("vllm:dense", [0, 960, 640, 640]),
    ],
)
def test_hits_of_vllm_by_hand(policy: str, expected: list[int]) -> None:
    assert hits(policy, SIBLINGS) == expected


@pytest.mark.parametrize(("policy", "expected"), [("vllm", 4992), ("vllm:dense", 5568)])
def test_the_next_turn_reuses_decoded_blocks(policy: str, expected: int) -> None:
    first = request(5000, ((1, 78),), output=600, told=((79, 9),))
    assert hits(policy, [first, request(5700, ((1, 89),))]) == [0, expected]


def test_blocks_are_vllms_own() -> None:
    driver = make_policy("vllm", deployment()).build(1000 * BLOCK_BYTES, lambda: 0.0)
    assert driver.capacity == {"all": 999}
    assert driver.facts["groups"] == [
        {"kind": "full", "layers": 9, "block_size": 64},
        *[{"kind": "swa", "layers": 8, "block_size": 64}] * 4,
        {"kind": "swa", "layers": 7, "block_size": 64},
    ]


def test_evictions_are_counted_by_kind() -> None:
    requests = [request(1000, ((1000 * i, 15),)) for i in range(40)]
    replay = Watched(make_policy("vllm:dense", deployment()), 200 * BLOCK_BYTES, Service())
    replay.play_all(requests)
    evicted = replay.driver.evictions()
    # Each leaves 15 full blocks and 5 x 15 SWA blocks; 199 can stay.
    assert evicted["full"] + evicted["swa"] >= 40 * 90 - 199
    assert evicted["swa"] > 4 * evicted["full"] > 0


def test_requests_hold_their_blocks_and_others_wait() -> None:
    # 105 full blocks and 5 x 3 SWA blocks each, 128 SWA blocks at most while prefilled.
    both = [request(6700, ((1000 * i, 104),), at=i, output=2, duration_s=10.0) for i in range(2)]
    policy = make_policy("vllm", deployment(chunk_tokens=512))
    replay = Watched(policy, 225 * BLOCK_BYTES, Service())
    replay.play_all(both)
    assert (replay.measured.waited, replay.measured.wait_seconds) == (1, 9.0)
    assert replay.clock.now == 20.0
    assert replay.measured.peak_running == 1
    roomy = Watched(policy, 400 * BLOCK_BYTES, Service())
    roomy.play_all(both)
    assert (roomy.measured.waited, roomy.measured.peak_running) == (0, 2)
    assert roomy.driver.used_blocks() == {"all": 0}


def test_a_running_request_that_grows_preempts_the_youngest() -> None:
    # Each is admitted with 50 full blocks and 5 x 3 SWA blocks and grows by 31 full blocks.
    requests = [
        request(3200, ((1000 * i, 50),), at=i, output=2000, duration_s=10.0) for i in range(2)
    ]
    policy = make_policy("vllm", deployment(chunk_tokens=128))
    replay = Watched(policy, 155 * BLOCK_BYTES, Service())
    replay.play_all(requests)
    measured = replay.measured
    assert measured.preemptions == 1
    assert (measured.requests, measured.prompt_tokens) == (2, 6400)
    assert replay.driver.used_blocks() == {"all": 0}


def test_a_request_that_never_fits_is_refused() -> None:
    replay = Watched(make_policy("vllm", deployment()), 100 * BLOCK_BYTES, Service())
    assert replay.play_all([request(8000, ((1, 125),)), request(1000, ((1, 15),))]) == [0]
    assert (replay.measured.refused, replay.measured.refused_tokens) == (1, 8000)


@pytest.mark.parametrize(("policy", "blocks"), [("vllm", 1), ("vllm:100", 500), ("mimo", 10)])
def test_what_cannot_be_built(policy: str, blocks: int) -> None:
    with pytest.raises(PolicyError, match=policy):
        make_policy(policy, deployment()).build(blocks * BLOCK_BYTES, lambda: 0.0)


class RealRequest(Request):
    """vLLM's own request, with tokens, as the engine wants to call it."""

    trace: TraceRequest
    future: list[int]
    counted = finished = False
    admission = 0

    def append_output(self, tokens: int) -> None:
        have = self.num_output_tokens
        self.append_output_token_ids(self.future[have : have + tokens])


class WithTokens(Watched):
    """Replays with real requests whose tokens are given by number."""

    tokens: list[list[int]]

    def new_request(self, trace: TraceRequest, number: int) -> Any:
        ids = self.tokens[number]
        made = RealRequest(
            request_id=str(number),
            prompt_token_ids=ids[: trace.input_tokens],
            sampling_params=SamplingParams(max_tokens=10_000),
            pooling_params=None,
            arrival_time=trace.arrival_s,
            block_hasher=get_request_block_hasher(BLOCK, sha256),
        )
        made.trace, made.future = trace, ids[trace.input_tokens :]
        return made


def conversation(turns: int) -> tuple[list[TraceRequest], list[list[int]]]:
    """Branching chats with their tokens; block ids are what the tokens' prefixes are."""
    draw = random.Random(5)
    init_none_hash(sha256)
    ids: dict[tuple[int, ...], int] = {}

    def runs(tokens: list[int], first: int, last: int) -> BlockRuns:
        keys = (tuple(tokens[: (i + 1) * BLOCK]) for i in range(first, last))
        return tuple((ids.setdefault(key, len(ids)), 1) for key in keys)

    histories: list[list[int]] = [[]]
    requests, sequences = [], []
    for number in range(turns):
        history = draw.choice(histories[-6:])
        keep = draw.choice([len(history), len(history), draw.randint(0, len(history))])
        prompt = history[:keep] + [draw.randrange(9) for _ in range(draw.randint(1, 700))]
        output = draw.randint(1, 300)
        tokens = prompt + [draw.randrange(9) for _ in range(output)]
        start, end = len(prompt) // BLOCK, len(tokens) // BLOCK
        told = runs(tokens, start, end)
        requests.append(
            request(len(prompt), runs(tokens, 0, start), output, told, at=number, duration_s=2.5)
        )
        sequences.append(tokens)
        histories.append(tokens)
    return requests, sequences


@pytest.mark.parametrize("policy", ["vllm", "vllm:512", "mimo"])
def test_real_requests_give_the_same_hits(policy: str) -> None:
    requests, sequences = conversation(60)
    made = make_policy(policy, deployment(chunk_tokens=1024))
    light = Watched(made, 700 * BLOCK_BYTES, Service())
    real = WithTokens(made, 700 * BLOCK_BYTES, Service())
    real.tokens = sequences
    found = light.play_all(requests)
    assert real.play_all(requests) == found
    assert light.driver.evictions() == real.driver.evictions()
    assert light.driver.evictions()["full"] > 0
    assert sum(hit > 0 for hit in found) > 20


def test_mimo_keeps_the_end_of_a_turn_and_replays() -> None:
    first = request(5000, ((1, 78),), output=600, told=((79, 9),))
    assert hits("mimo", [first, request(5700, ((1, 89),))], 4000) == [0, 5568]
    # Parts at 6,400 tokens, far from any tail: 39 x 127 tokens are replayed.
    far = [request(8000, ((1, 125),)), request(8000, ((1, 100), (500, 25)))]
    assert hits("mimo:tail_interval=0", far, 4000) == [0, (6400 - 39 * 127) // 64 * 64]
    assert hits("mimo", far, 4000) == [0, 6144]


def test_comparison_interleaves_and_reports() -> None:
    policies = [make_policy(name, deployment()) for name in ("vllm", "vllm:dense")]
    budgets = [1000 * BLOCK_BYTES, 2000 * BLOCK_BYTES]
    told: list[int] = []
    results = compare(SIBLINGS, policies, budgets, Service(hold=False), told.append)
    assert [(r.policy, r.budget_bytes) for r in results] == [
        (policy.name, budget) for budget in budgets for policy in policies
    ]
    assert sum(told) == 4 * len(SIBLINGS)
    assert results[2].hit_rate == pytest.approx(1600 / 4300)
    assert results[2].recomputed_fraction == pytest.approx(2700 / 4300)
    assert [cost.bucket for cost in results[0].lookups] == ["<4K"]
    assert results[0].lookups[0].count == 4


def test_lookup_has_no_default_cost() -> None:
    assert Lookup(cached=64, resume=0, nanoseconds=5).handle is None
