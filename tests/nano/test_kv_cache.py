"""Both prefix caches keep the same promises: whatever is done, and by name in what small engines have got wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.nano import PagedKVCache, RadixKVCache, compute_block_hash
from mac_runner.nano.testing import KVCache, NoBlocksError, blocks_for, hit_limit

CacheMaker = Callable[..., KVCache]
CACHES = pytest.mark.parametrize("make", [PagedKVCache, RadixKVCache])


@dataclass(kw_only=True)
class Table:
    """A sequence as the tests see it: its tokens, and how many of them are in the cache."""

    tokens: list[int]
    room: int
    computed: int
    shared: int


@dataclass
class World:
    """A cache, who uses it, and what each of its blocks truly holds: all tokens up to its end, and the version."""

    cache: KVCache
    version: int = 0
    tables: dict[int, Table] = field(default_factory=dict)
    contents: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    num_made: int = 0

    def admit(self, tokens: list[int], extra: int) -> None:
        """Acquire as the scheduler would: only if there are blocks enough."""
        size = self.cache.block_size
        hit = self.cache.lookup(tokens)
        fresh = blocks_for(len(tokens) + extra, size) - hit.num_tokens // size
        if fresh + hit.num_idle_blocks > self.cache.num_available:
            return
        seq_id, self.num_made = self.num_made, self.num_made + 1
        found = self.cache.acquire(seq_id, tokens, len(tokens) + extra)
        assert found.cached_length == hit.num_tokens
        assert found.cached_length < len(tokens)
        num_found = found.cached_length // size
        for index, block_id in enumerate(found.block_ids[:num_found]):
            # What is found is what would have been computed, with the weights of now.
            assert self.contents[block_id] == (self.version, tuple(tokens[: (index + 1) * size]))
        self.tables[seq_id] = Table(tokens=tokens, room=len(tokens) + extra, computed=hit.num_tokens, shared=num_found)

    def compute(self, seq_id: int, count: int) -> None:
        """Write KV, then register it."""
        table = self.tables[seq_id]
        blocks, size = self.cache.block_ids(seq_id), self.cache.block_size
        end = min(table.computed + count, len(table.tokens))
        for place in range(table.computed, end):
            assert place // size >= table.shared, "a shared block would be written"
            self.contents[blocks[place // size]] = (self.version, tuple(table.tokens[: place + 1]))
        table.computed = end
        self.cache.register(seq_id, table.tokens, end)

    def grow(self, seq_id: int, token: int) -> None:
        """Say a token, taking a block for it if need be."""
        table = self.tables[seq_id]
        if len(table.tokens) == table.room:
            needed = blocks_for(table.room + 1, self.cache.block_size) - self.cache.num_held(seq_id)
            if needed > self.cache.num_available:
                return
            self.cache.extend(seq_id, table.room + 1)
            table.room += 1
        table.tokens.append(token)

    def release(self, seq_id: int, _: int = 0) -> None:
        before = self.cache.num_available
        expected = self.cache.num_reclaimed(seq_id)
        self.cache.release(seq_id)
        del self.tables[seq_id]
        assert self.cache.num_available == before + expected

    def check(self) -> None:
        """Every promise, whatever was done."""
        self.cache.check()
        counts = self.cache.counts()
        assert counts.free + counts.cached + counts.held == self.cache.num_blocks
        assert counts.free + counts.cached == self.cache.num_available
        writable = [
            block for seq_id, table in self.tables.items() for block in self.cache.block_ids(seq_id)[table.shared :]
        ]
        fresh = [
            block
            for seq_id, table in self.tables.items()
            for block in self.cache.block_ids(seq_id)[blocks_for(table.computed, self.cache.block_size) :]
        ]
        assert len(set(writable)) == len(writable), "a block is in two writable tables"
        held = [block for seq_id in self.tables for block in self.cache.block_ids(seq_id)]
        assert held.count(-1) == 0
        assert all(held.count(block) == 1 for block in fresh), "a block to be written is somebody else's too"
        for seq_id, table in self.tables.items():
            # Nobody has written over what a sequence has computed or found.
            size = self.cache.block_size
            for index in range(table.computed // size):
                block = self.cache.block_ids(seq_id)[index]
                assert self.contents[block][1] == tuple(table.tokens[: (index + 1) * size])


Action = tuple[str, int | list[int], int]
ADMIT = st.tuples(st.just("admit"), st.lists(st.integers(0, 1), min_size=1, max_size=14), st.integers(0, 6))
COMPUTE = st.tuples(st.just("compute"), st.integers(0, 99), st.integers(1, 9))
GROW = st.tuples(st.just("grow"), st.integers(0, 99), st.integers(0, 1))
RELEASE = st.tuples(st.just("release"), st.integers(0, 99), st.just(0))
RARE = st.tuples(st.sampled_from(["update", "flush"]), st.just(0), st.just(0))
ACTIONS = st.one_of(ADMIT, ADMIT, COMPUTE, COMPUTE, COMPUTE, GROW, RELEASE, RELEASE, RARE)
STORIES = st.integers(5, 60).flatmap(lambda length: st.lists(ACTIONS, min_size=length, max_size=length))


def play(world: World, actions: Sequence[Action]) -> None:
    for name, what, number in actions:
        seq_id = sorted(world.tables)[what % len(world.tables)] if isinstance(what, int) and world.tables else -1
        if isinstance(what, list):
            world.admit(list(what), number)
        elif name == "update":
            world.version += 1
            world.cache.set_version(world.version)
        elif name == "flush":
            world.cache.flush()
            assert world.cache.lookup([0] * 20).num_tokens == 0
            assert world.cache.counts().cached == 0
        elif seq_id >= 0:
            getattr(world, name)(seq_id, number)
        world.check()
    for seq_id in sorted(world.tables):
        world.release(seq_id)
    world.check()

    # All blocks can be had again, whatever lies in them.
    assert world.cache.num_available == world.cache.num_blocks
    world.cache.acquire(world.num_made, [9], world.cache.num_blocks * world.cache.block_size)
    world.cache.check()


@CACHES
@given(num_blocks=st.integers(1, 12), block_size=st.sampled_from([1, 2, 4]), actions=STORIES)
@settings(max_examples=100)
def test_cache_keeps_its_promises_whatever_is_done(
    make: CacheMaker, num_blocks: int, block_size: int, actions: Sequence[Action]
) -> None:
    play(World(make(num_blocks, block_size)), actions)


PREFIX = [1, 2, 3, 4]
NAMED: dict[str, tuple[int, list[Action]]] = {
    # The second must not build on what the first has yet to compute.
    "two of one batch": (
        9,
        [("admit", [*PREFIX, 5], 0), ("admit", [*PREFIX, 5], 0), ("compute", 0, 3), ("admit", [*PREFIX, 5], 0)],
    ),
    "who made a prefix ends before who found it": (
        4,
        [
            ("admit", PREFIX, 0),
            ("compute", 0, 4),
            ("admit", [*PREFIX, 5], 1),
            ("release", 0, 0),
            ("admit", [8, 8], 0),
            ("compute", 1, 2),
        ],
    ),
    # If the double were freed, a table would point to what others write.
    "two computed the same side by side": (
        6,
        [
            ("admit", [*PREFIX, 5], 0),
            ("admit", [*PREFIX, 6], 0),
            ("compute", 0, 5),
            ("compute", 1, 5),
            ("release", 1, 0),
            ("admit", [*PREFIX, 9], 0),
            ("compute", 1, 1),
        ],
    ),
    "a flush while a prefix is shared": (
        16,
        [
            ("admit", [*PREFIX, 5], 0),
            ("compute", 0, 5),
            ("admit", [*PREFIX, 6], 1),
            ("flush", 0, 0),
            ("release", 0, 0),
            ("release", 0, 0),
        ],
    ),
}
"""How many blocks there are, and what is done."""


@CACHES
@pytest.mark.parametrize("name", NAMED)
def test_cache_keeps_its_promises_in_what_small_engines_have_got_wrong(make: CacheMaker, name: str) -> None:
    num_blocks, actions = NAMED[name]
    play(World(make(num_blocks, 2)), actions)


def filled(cache: KVCache, seq_id: int, tokens: list[int]) -> list[int]:
    """Admit a sequence and compute all of it; its table."""
    cache.acquire(seq_id, tokens, len(tokens))
    cache.register(seq_id, tokens, len(tokens))
    return list(cache.block_ids(seq_id))


@CACHES
def test_released_blocks_are_found_again(make: CacheMaker) -> None:
    cache = make(4, 2)
    table = filled(cache, 0, [1, 2, 3, 4])
    cache.release(0)

    assert cache.counts() == (2, 2, 0)
    assert list(cache.acquire(1, [1, 2, 3, 4, 5], 5).block_ids[:2]) == table


@CACHES
def test_block_in_use_is_never_given_away(make: CacheMaker) -> None:
    """Not even when everything else is gone."""
    cache = make(3, 2)
    table = filled(cache, 0, [1, 2, 3, 4])
    cache.acquire(1, [7, 7], 2)

    with pytest.raises(NoBlocksError):
        cache.extend(1, 4)
    assert set(table).isdisjoint(cache.block_ids(1))
    cache.check()


@CACHES
def test_generated_tokens_fill_blocks_too(make: CacheMaker) -> None:
    cache = make(4, 2)
    tokens = [1, 2, 3]
    filled(cache, 0, tokens)
    for token in (4, 5, 6):
        tokens.append(token)
        cache.extend(0, len(tokens))
        cache.register(0, tokens, len(tokens))

    assert len(cache.block_ids(0)) == 3
    assert cache.lookup([1, 2, 3, 4, 5, 6, 7]).num_tokens == 6


def full_of_two(make: CacheMaker) -> KVCache:
    """Of two sequences, which have ended one after the other."""
    cache = make(4, 2)
    for seq_id, tokens in enumerate(([1, 1, 1, 1], [2, 2, 2, 2])):
        filled(cache, seq_id, tokens)
        cache.release(seq_id)
    return cache


@CACHES
def test_longest_unused_goes_first_and_of_a_prefix_its_end(make: CacheMaker) -> None:
    cache, found_again = full_of_two(make), full_of_two(make)
    cache.acquire(2, [9, 9], 2)
    found_again.acquire(2, [1, 1, 1, 1, 1], 4)
    found_again.release(2)
    found_again.acquire(3, [9, 9], 4)

    assert [each.lookup([1] * 5).num_tokens for each in (cache, found_again)] == [2, 4]
    assert [each.lookup([2] * 5).num_tokens for each in (cache, found_again)] == [4, 0]


@CACHES
def test_what_other_weights_computed_is_never_found(make: CacheMaker) -> None:
    cache = make(8, 2)
    filled(cache, 0, [1, 2, 3, 4])
    cache.acquire(1, [5, 6, 7], 3)
    cache.set_version(1)
    # It was admitted with the old weights, and part of its KV is of those.
    cache.register(1, [5, 6, 7], 3)
    cache.release(0)
    cache.release(1)

    assert cache.lookup([1, 2, 3, 4, 5]).num_tokens == 0
    assert cache.lookup([5, 6, 7]).num_tokens == 0
    assert cache.counts() == (6, 2, 0)
    cache.check()


@CACHES
def test_flush_leaves_tables_in_use_alone(make: CacheMaker) -> None:
    cache = make(4, 2)
    table = filled(cache, 0, [1, 2, 3, 4])
    cache.flush()
    cache.register(0, [1, 2, 3, 4, 5, 6], 4)

    assert cache.block_ids(0) == table
    assert cache.lookup([1, 2, 3, 4, 5]).num_tokens == 0
    cache.check()
    cache.release(0)
    assert cache.num_available == 4


@CACHES
def test_hits_end_on_whole_blocks_before_the_last_token(make: CacheMaker) -> None:
    cache = make(32, 8)
    filled(cache, 0, [1] * 30)

    assert [cache.lookup([1] * length).num_tokens for length in (8, 9, 16, 17, 25, 31)] == [0, 8, 8, 16, 24, 24]
    cache.release(0)
    assert [cache.lookup([1] * length).num_idle_blocks for length in (8, 9, 17, 41)] == [0, 1, 2, 3]
    assert hit_limit(17, 8) == 16


@CACHES
def test_shared_blocks_are_counted_once(make: CacheMaker) -> None:
    """What several hold is not available, and is reclaimed only from the last."""
    cache = make(8, 2)
    filled(cache, 0, [1, 2, 3, 4])
    cache.acquire(1, [1, 2, 3, 4, 5], 5)

    assert cache.num_available == 5
    assert (cache.num_reclaimed(0), cache.num_reclaimed(1)) == (0, 1)


def test_equal_hashes_of_different_tokens_are_no_hit() -> None:
    cache = PagedKVCache(8, 2, hash_block=lambda tokens, prefix: 7)
    filled(cache, 0, [1, 2, 3])

    assert cache.lookup([1, 2, 3]).num_tokens == 2
    assert cache.lookup([8, 9, 3]).num_tokens == 0
    filled(cache, 1, [8, 9, 3])
    cache.check()
    assert cache.lookup([8, 9, 3]).num_tokens == 0


def test_blocks_behind_an_equal_hash_are_not_found_behind_the_other() -> None:
    """Nothing is registered behind a block that could not be."""
    cache = PagedKVCache(8, 2, hash_block=lambda tokens, prefix: tokens[0] if tokens[0] >= 50 else 7)
    filled(cache, 0, [1, 2, 50, 51, 3])
    filled(cache, 1, [8, 9, 60, 61, 3])

    assert cache.lookup([1, 2, 60, 61, 3]).num_tokens == 2


def test_hash_of_a_block_follows_from_all_tokens_up_to_its_end() -> None:
    first, other = compute_block_hash([1, 2]), compute_block_hash([2, 1])

    assert first != other
    assert compute_block_hash([3, 4], first) != compute_block_hash([3, 4], other)
    assert compute_block_hash((1, 2)) == compute_block_hash((1, 2), -1) == first
    assert compute_block_hash([1, 2], 0) != first
    assert compute_block_hash([258]) != compute_block_hash([2, 1])


def test_radix_edge_is_split_where_prefixes_part() -> None:
    cache = RadixKVCache(16, 1)
    left = filled(cache, 0, [1, 2, 3, 4])
    right = filled(cache, 1, [1, 2, 8, 9])

    assert right[:2] == left[:2]
    assert cache.lookup([1, 2, 8, 9, 0]).num_tokens == 4
    assert cache.lookup([1, 2, 5]).num_tokens == 2
    cache.check()


def test_radix_leaves_that_are_offered_often_are_kept_note_of_once() -> None:
    """What is used and let go of a million times must not cost memory each time."""
    cache = RadixKVCache(4, 2)
    filled(cache, 0, [1, 2])
    cache.release(0)
    for seq_id in range(1, 50):
        cache.acquire(seq_id, [1, 2, 3], 3)
        cache.release(seq_id)

    assert len(cache._spare) == 1
