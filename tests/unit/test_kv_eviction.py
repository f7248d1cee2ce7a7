"""The free queue: vLLM's order under "lru", the learned order otherwise, the cost of a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from vllm_mimo.kv.eviction import (
    DEFAULT_POLICY,
    NO_LABEL,
    RANK_SECONDS,
    SUPERSEDED,
    EvictionQueue,
    Label,
    ReturnTimePolicy,
)
from vllm_mimo.kv.return_times import ReturnTimes, class_of
from vllm_mimo.kv.turns import Ending, Turn, Turns

BLOCK = 64
NAMES = st.sampled_from(["popleft", "popleft_n", "remove", "append", "append_n", "prepend_n"])
OPERATIONS = st.lists(st.tuples(NAMES, st.integers(0, 7), st.integers(0, 5)), max_size=60)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Pool:
    """A queue of its own blocks, and the chains that a test makes of them."""

    size: int
    policy: str = DEFAULT_POLICY
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.turns = Turns(BLOCK, self.clock)
        self.blocks = [KVCacheBlock(i) for i in range(self.size)]
        self.queue = EvictionQueue(self.blocks, self.turns, self.policy, self.clock)

    def take(self, hashes: list[str]) -> tuple[Turn, list[Any]]:
        """Blocks for a prompt that hits nothing."""
        turn = self.turns.begin(hashes)
        blocks = self.queue.popleft_n(len(hashes))
        for place, block in enumerate(blocks):
            block.reset_hash()
            block.set_block_hash(hashes[place].encode(), (place + 1) * BLOCK)
        return turn, blocks

    def free(self, turn: Turn, blocks: list[Any], ending: Ending, weight: float = 1.0) -> None:
        self.turns.end(turn, ending)
        self.queue.label = Label(turn, weight=weight)
        self.queue.append_n(blocks[::-1])
        self.queue.label = NO_LABEL

    def run(self, hashes: list[str], ending: Ending, weight: float = 1.0) -> list[Any]:
        turn, blocks = self.take(hashes)
        self.free(turn, blocks, ending, weight)
        return blocks


def chain(name: str, length: int) -> list[str]:
    return [f"{name}{i}" for i in range(length)]


def apply(queue: Any, held: list[Any], name: str, count: int, pick: int) -> list[Any]:
    """One operation on a queue whose other blocks are `held`; what it returned."""
    if name == "popleft":
        if queue.num_free_blocks == 0:
            with pytest.raises(ValueError):
                queue.popleft()
            return []
        held.append(queue.popleft())
        return held[-1:]
    if name == "popleft_n":
        got = queue.popleft_n(min(count, queue.num_free_blocks))
        held.extend(got)
        return list(got)
    if name == "remove":
        free = queue.get_all_free_blocks()
        if free:
            block = free[(count + pick) % len(free)]
            queue.remove(block)
            held.append(block)
        return held[-1:]
    count = min(count, len(held)) if name != "append" else min(1, len(held))
    blocks = [held.pop(pick % len(held)) for _ in range(count)]
    if name == "append":
        for block in blocks:
            queue.append(block)
    else:
        getattr(queue, name)(blocks)
    return blocks


@given(st.integers(1, 12), OPERATIONS)
@settings(deadline=None)
def test_lru_is_vllms_order(size: int, operations: list[tuple[str, int, int]]) -> None:
    pool = Pool(size, "lru")
    theirs = FreeKVCacheBlockQueue([KVCacheBlock(i) for i in range(size)])
    held: tuple[list[Any], list[Any]] = ([], [])
    for name, count, pick in operations:
        for queue, mine in zip((pool.queue, theirs), held, strict=True):
            apply(queue, mine, name, count, pick)
        assert [b.block_id for b in held[0]] == [b.block_id for b in held[1]]
        ids = [b.block_id for b in pool.queue.get_all_free_blocks()]
        assert ids == [b.block_id for b in theirs.get_all_free_blocks()]
        assert pool.queue.num_free_blocks == theirs.num_free_blocks == len(ids)


LABELS = st.sampled_from(["none", "superseded", "itself", "tool", "running", "light"])


@given(st.integers(1, 16), st.data())
@settings(deadline=None, max_examples=200)
def test_every_block_is_free_once_or_held(size: int, data: st.DataObject) -> None:
    pool = Pool(size)
    held: list[Any] = []
    for name, count, pick in data.draw(OPERATIONS):
        pool.clock.now += data.draw(st.sampled_from([0.0, 0.1, 3.0, 500.0]))
        kind = data.draw(LABELS)
        turn = pool.turns.begin(chain(f"c{pick % 3}.", 8 * count))
        if kind in ("itself", "tool", "light"):
            pool.turns.end(turn, Ending.ITSELF if kind == "itself" else Ending.TOOL_CALL)
        pool.queue.label = {
            "none": NO_LABEL,
            "superseded": SUPERSEDED,
            "light": Label(turn, weight=0.1),
        }.get(kind, Label(turn))
        expected = pool.queue.get_all_free_blocks() if name.startswith("popleft") else []
        changed = apply(pool.queue, held, name, count, pick)
        if name == "prepend_n":
            assert pool.queue.get_all_free_blocks()[: len(changed)] == changed
        if expected:
            assert changed == expected[: len(changed)]
        free = [b.block_id for b in pool.queue.get_all_free_blocks()]
        assert len(free) == pool.queue.num_free_blocks
        assert sorted(free + [b.block_id for b in held]) == list(range(size))
        assert all(b.prev_free_block is None and b.next_free_block is None for b in held)


@given(st.lists(st.tuples(st.integers(8, 40), st.sampled_from([0.2, 5.0, 90.0])), min_size=1))
@settings(deadline=None)
def test_a_block_never_outlives_its_prefix(turns: list[tuple[int, float]]) -> None:
    """Chains that fork off one another, freed with every ending: parents are evicted later."""
    pool = Pool(2000)  # more than all chains together: nothing is evicted
    where: dict[str, Any] = {}
    chains: list[list[str]] = []
    for number, (length, wait) in enumerate(turns[:30]):
        pool.clock.now += wait
        fork = length // 16 * 8
        hashes = chain("common", fork) + chain(f"own{number % 3}at{fork}.", length)
        hit = []
        for h in hashes:
            if h not in where:
                break
            hit.append(where[h])
            pool.queue.remove(where[h])
        turn = pool.turns.begin(hashes)
        new = pool.queue.popleft_n(len(hashes) - len(hit))
        for place, block in enumerate(new, len(hit)):
            block.reset_hash()
            block.set_block_hash(hashes[place].encode(), (place + 1) * BLOCK)
            where[hashes[place]] = block
        pool.free(turn, [*hit, *new], Ending(number % 3))
        chains.append(hashes)
        order = {b.block_id: i for i, b in enumerate(pool.queue.get_all_free_blocks())}
        for hashes in chains:
            ranks = [order[where[h].block_id] for h in hashes]
            assert ranks == sorted(ranks, reverse=True)


def test_unknown_policy_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'arc'.*lru, return_time"):
        Pool(4, "arc")


def test_uncached_then_superseded_then_the_rest() -> None:
    pool = Pool(32)
    kept = pool.run(chain("a", 16), Ending.TOOL_CALL)
    _, dead = pool.take(chain("b", 8))
    _, empty = pool.take(chain("c", 8))
    pool.queue.label = SUPERSEDED
    pool.queue.append_n(dead)
    pool.queue.prepend_n(empty)
    assert pool.queue.get_all_free_blocks() == [*empty, *dead, *kept[::-1]]


def test_a_turn_that_ended_by_itself_goes_before_one_that_waits_for_a_tool() -> None:
    pool = Pool(32)
    waits = pool.run(chain("a", 16), Ending.TOOL_CALL)
    pool.clock.now += 5.0
    ended = pool.run(chain("b", 16), Ending.ITSELF)
    pool.clock.now += 10.0
    assert pool.queue.popleft_n(16) == ended[::-1]
    assert pool.queue.popleft_n(16) == waits[::-1]


def test_the_next_turn_leaves_the_replaced_branch_to_be_evicted_first() -> None:
    pool = Pool(80)
    first = pool.run(chain("a", 32), Ending.TOOL_CALL)
    other = pool.run(chain("x", 32), Ending.ITSELF)
    pool.clock.now += 100.0
    for block in first[:24]:
        pool.queue.remove(block)
    turn = pool.turns.begin(chain("a", 24) + chain("edited", 8))
    assert pool.queue.popleft_n(16)[0].block_id == 64
    assert pool.queue.popleft_n(8) == first[:23:-1]
    pool.free(turn, first[:24], Ending.ITSELF)
    assert pool.queue.popleft_n(32) == other[::-1]


def test_a_fork_does_not_supersede_and_the_common_prefix_outlives_both() -> None:
    pool = Pool(96)
    first = pool.run(chain("s", 16) + chain("a", 32), Ending.TOOL_CALL)
    for block in first[:16]:
        pool.queue.remove(block)
    turn = pool.turns.begin(chain("s", 16) + chain("b", 32))
    new = pool.queue.popleft_n(32)
    for place, block in enumerate(new, 16):
        block.set_block_hash(b"b%d" % place, (place + 1) * BLOCK)
    pool.free(turn, first[:16] + new, Ending.TOOL_CALL)
    pool.clock.now += 30.0
    order = pool.queue.get_all_free_blocks()[16:]
    assert order[-16:] == first[15::-1]
    assert set(map(id, order[:64])) == set(map(id, first[16:] + new))
    # The first chain comes back after all: it continues where it was, not as a fork.
    assert not pool.turns.begin(chain("s", 16) + chain("a", 32)).superseded
    assert pool.queue.num_free_blocks == 96


def test_weight_decides_between_equals_and_preempted_turns_stay() -> None:
    pool = Pool(48)
    turn, running = pool.take(chain("p", 16))
    pool.queue.label = Label(turn)
    pool.queue.append_n(running[::-1])
    heavy = pool.run(chain("a", 16), Ending.TOOL_CALL, weight=4953 / 2)
    light = pool.run(chain("b", 16), Ending.TOOL_CALL, weight=200 / 2)
    assert pool.queue.popleft_n(16) == running[::-1]  # weight 1
    assert pool.queue.popleft_n(16) == light[::-1]
    assert pool.queue.popleft_n(16) == heavy[::-1]


def test_return_times_are_learned_and_forgotten() -> None:
    times = ReturnTimes()
    quick, never = class_of(Ending.TOOL_CALL, 10.0), class_of(Ending.ITSELF, 10.0)
    for _ in range(200):
        times.observe(quick, 10.0, returned=True)
        times.observe(never, 3000.0, returned=False)
    times.rebuild([(never, 50.0)])
    assert times.index(quick, 0.0) == pytest.approx(1 / 11, rel=0.4)
    assert times.index(quick, 0.0) > 100 * times.index(never, 0.0)
    # Waiting through the usual time makes a return less likely, not more.
    assert times.index(quick, 40.0) < times.index(quick, 5.0)
    for idle in (0.0, 7.0, 100.0, 1e6):
        assert times.highest(idle) >= times.index(quick, idle)
    for _ in range(20_000):
        times.observe(quick, 3000.0, returned=False)
        times.observe(never, 10.0, returned=True)
    times.rebuild(())
    assert times.index(never, 0.0) > times.index(quick, 0.0)


class CountingBlock:
    """A block that counts the links written to it."""

    writes = 0

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.block_hash_num_tokens = (block_id + 1) * BLOCK

    def __setattr__(self, name: str, value: object) -> None:
        CountingBlock.writes += name.endswith("free_block")
        object.__setattr__(self, name, value)


def writes(queue: Any, blocks: list[Any]) -> Iterator[int]:
    """Links written to blocks by taking all blocks, freeing them and taking them again."""
    for step in (
        lambda: queue.popleft_n(len(blocks)),
        lambda: queue.append_n(blocks),
        lambda: [queue.remove(block) for block in blocks[::2]],
        lambda: queue.prepend_n(blocks[::2]),
        lambda: queue.popleft_n(len(blocks)),
    ):
        CountingBlock.writes = 0
        step()
        yield CountingBlock.writes


def test_a_block_costs_no_more_link_writes_than_in_vllm() -> None:
    size = 1000
    clock = Clock()
    theirs = [CountingBlock(i) for i in range(size)]
    ours = [CountingBlock(i) for i in range(size)]
    vllm_writes = list(writes(FreeKVCacheBlockQueue(theirs), theirs))  # type: ignore[arg-type]
    our_writes = list(writes(EvictionQueue(ours, Turns(BLOCK, clock), clock=clock), ours))
    assert all(mine <= his + 8 for mine, his in zip(our_writes, vllm_writes, strict=True))


def test_segments_are_ranked_once_a_second_not_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    worth = ReturnTimePolicy.worth

    def counted(self: ReturnTimePolicy, *arguments: Any) -> float:
        nonlocal calls
        calls += 1
        return worth(self, *arguments)

    monkeypatch.setattr(ReturnTimePolicy, "worth", counted)
    pool = Pool(3200)
    for number in range(100):
        pool.run(chain(f"{number}.", 32), Ending.TOOL_CALL)
    assert calls == 0
    pool.clock.now += 60.0
    for _ in range(1000):
        pool.queue.popleft_n(3)
    assert calls == 100
    pool.clock.now += RANK_SECONDS
    pool.queue.popleft()
    assert calls <= 107


def test_small_frees_of_one_kind_share_a_segment() -> None:
    pool = Pool(64)
    blocks = pool.queue.popleft_n(64)
    for block in blocks:
        pool.queue.append(block)
    assert len(pool.queue._segments) == 1
    assert pool.queue.get_all_free_blocks() == blocks
    assert list(pool.queue.iter_blocks_after(blocks[61])) == blocks[62:]
