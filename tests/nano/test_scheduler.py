"""What a step computes: one rule, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.nano import PagedKVCache, SchedulerConfig, schedule
from mac_runner.nano.testing import PASSED_OVER_MAX

CONFIG = SchedulerConfig(max_batch_size=4, max_tokens_per_batch=32, block_size=4, admission="reserve")


@dataclass
class Asked:
    """A sequence, as far as a scheduler looks at it."""

    seq_id: int
    tokens: list[int]
    num_tokens_max: int = 20
    num_computed_tokens: int = 0


@dataclass
class Table:
    """Sequences and a cache, with what a step's plan does to them."""

    cache: PagedKVCache
    config: SchedulerConfig = CONFIG
    waiting: list[Asked] = field(default_factory=list)
    running: list[Asked] = field(default_factory=list)

    def step(self) -> dict[int, int]:
        """Plan and carry out a step; how many tokens of whom."""
        plan = schedule(self.waiting, self.running, self.cache, self.config)
        everybody = {each.seq_id: each for each in (*self.waiting, *self.running)}
        for seq_id in plan.preempted_seqs:
            self.cache.release(seq_id)
            everybody[seq_id].num_computed_tokens = 0
            self.running.remove(everybody[seq_id])
            self.waiting.insert(0, everybody[seq_id])
        for seq_id in plan.decode_seqs:
            self.cache.extend(seq_id, len(everybody[seq_id].tokens))
        for seq_id in plan.admitted_seqs:
            each = everybody[seq_id]
            room = each.num_tokens_max if self.config.admission == "reserve" else len(each.tokens)
            each.num_computed_tokens = self.cache.acquire(seq_id, each.tokens, room).cached_length
            self.waiting.remove(each)
            self.running.append(each)
        for seq_id, num_tokens in plan.work:
            each = everybody[seq_id]
            each.num_computed_tokens += num_tokens
            self.cache.register(seq_id, each.tokens, each.num_computed_tokens)
            if each.num_computed_tokens == len(each.tokens):
                each.tokens.append(1000 + seq_id)
        for each in [each for each in self.running if len(each.tokens) >= each.num_tokens_max]:
            self.running.remove(each)
            self.cache.release(each.seq_id)
        self.cache.check()
        return dict(plan.work)


def prompt(seq_id: int, length: int) -> list[int]:
    return [seq_id] * length


def test_plan_changes_nothing() -> None:
    waiting, cache = [Asked(0, prompt(0, 9))], PagedKVCache(10, 4)

    assert schedule(waiting, [], cache, CONFIG) == schedule(waiting, [], cache, CONFIG)
    assert (cache.num_available, waiting[0].num_computed_tokens) == (10, 0)


def test_those_that_lack_one_token_come_first() -> None:
    """A long prompt that is being computed holds up nobody who is generating."""
    cache = PagedKVCache(40, 4)
    cache.acquire(0, prompt(0, 90), 100)
    cache.acquire(1, prompt(1, 5), 20)
    running = [Asked(0, prompt(0, 90), 100), Asked(1, prompt(1, 5), 20, num_computed_tokens=4)]

    plan = schedule([], running, cache, CONFIG)

    assert (plan.decode_seqs, plan.prefill_seqs) == ((1,), (0,))
    assert dict(plan.work) == {1: 1, 0: 31}


def test_budget_is_shared_out_in_the_order_of_arrival_and_a_long_prompt_computed_in_pieces() -> None:
    long = Table(PagedKVCache(40, 4), waiting=[Asked(0, prompt(0, 70), 80)])
    many = Table(PagedKVCache(40, 4), waiting=[Asked(i, prompt(i, 14)) for i in range(4)])

    assert [long.step() for _ in range(4)] == [{0: 32}, {0: 32}, {0: 6}, {0: 1}]
    assert many.step() == {0: 14, 1: 14, 2: 4}
    assert many.step() == {0: 1, 1: 1, 2: 10, 3: 14}


@given(
    long=st.integers(200, 1500),
    shorts=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 120)), min_size=1, max_size=6),
)
@settings(max_examples=100)
def test_short_prompt_waits_for_no_long_one_and_holds_it_up_for_as_long_as_it_takes(
    long: int, shorts: list[tuple[int, int]]
) -> None:
    """Whenever it comes."""
    config = replace(CONFIG, max_batch_size=16)
    table = Table(PagedKVCache(1000, 4), config, waiting=[Asked(0, prompt(0, long), long + 1)])
    arrivals = {index + 1: (at, length) for index, (at, length) in enumerate(sorted(shorts))}
    ended, step = dict[int, int](), 0
    while len(ended) <= len(shorts):
        for seq_id, (at, length) in arrivals.items():
            if at == step:
                table.waiting.append(Asked(seq_id, prompt(seq_id, length), length + 1))
        everybody = {each.seq_id for each in (*table.waiting, *table.running)}
        done = table.step()
        assert sum(done.values()) <= config.max_tokens_per_batch
        assert 0 in ended or done[0] > 0
        step += 1
        left = {each.seq_id for each in (*table.waiting, *table.running)}
        ended |= dict.fromkeys(everybody - left, step)

    budget = config.max_tokens_per_batch
    for seq_id, (at, length) in arrivals.items():
        others = sum(more for other, (_, more) in arrivals.items() if other != seq_id)
        if length + others < long // 3:
            assert ended[seq_id] - at <= (length + others) / (0.8 * budget - len(shorts)) + 2
    assert ended[0] <= (long + sum(length for _, length in shorts)) // budget + 3 * len(shorts) + 1


def test_reserved_requests_are_never_preempted() -> None:
    """Whoever is admitted finds room for all it may need, so the third waits."""
    table = Table(PagedKVCache(10, 4), waiting=[Asked(i, prompt(i, 3)) for i in range(3)])

    assert table.step() == {0: 3, 1: 3}
    while table.running:
        assert len(table.step()) <= 2
        if not table.waiting:
            break


def test_prefix_in_the_cache_is_not_computed_again() -> None:
    table = Table(PagedKVCache(20, 4), waiting=[Asked(0, [7] * 13)])
    table.step()
    table.waiting.append(Asked(1, [7] * 13))

    assert table.step() == {0: 1, 1: 1}


def test_what_another_is_computing_is_waited_for() -> None:
    """And whoever computes something else passes by."""
    waiting = [Asked(0, [7] * 13), Asked(1, [7] * 13), Asked(2, [5] * 6)]
    table = Table(PagedKVCache(40, 4), waiting=waiting)

    assert table.step() == {0: 13, 2: 6}
    assert table.step() == {0: 1, 2: 1, 1: 1}


def test_prompt_of_no_more_than_a_block_waits_for_nobody() -> None:
    """Nothing of it will ever be found, for its last token is always computed."""
    for length in (3, 4):
        table = Table(PagedKVCache(40, 4), waiting=[Asked(i, [7] * length) for i in range(3)])

        assert table.step() == {0: length, 1: length, 2: length}


def test_those_passed_over_in_a_step_are_bounded_and_so_are_the_seats_of_a_batch() -> None:
    waiting = [Asked(i, [7] * 13) for i in range(PASSED_OVER_MAX + 3)]
    table = Table(PagedKVCache(400, 4), waiting=[*waiting, Asked(99, [5] * 6)])

    assert table.step() == {0: 13}
    assert len(Table(PagedKVCache(400, 4), waiting=[Asked(i, [i]) for i in range(9)]).step()) == 4


def test_full_cache_makes_the_latest_start_anew() -> None:
    config = replace(CONFIG, admission="preempt")
    table = Table(PagedKVCache(4, 4), config, waiting=[Asked(i, prompt(i, 7), 16) for i in range(2)])

    assert [table.step() for _ in range(3)] == [{0: 7, 1: 7}, {0: 1, 1: 1}, {0: 1}]
    assert [each.seq_id for each in table.waiting] == [1]
    steps = 0
    while table.waiting or table.running:
        table.step()
        steps += 1
        assert steps < 100


@given(
    num_blocks=st.integers(5, 30),
    lengths=st.lists(st.tuples(st.integers(1, 18), st.integers(0, 2)), min_size=1, max_size=12),
    admission=st.sampled_from(["reserve", "preempt"]),
)
@settings(max_examples=150)
def test_everybody_comes_to_an_end(num_blocks: int, lengths: list[tuple[int, int]], admission: str) -> None:
    """Whatever the cache holds: within the budget, no step without work, and no block short."""
    config = replace(CONFIG, admission=admission)  # type: ignore[arg-type]
    waiting = [Asked(i, [kind] * length, 20) for i, (length, kind) in enumerate(lengths)]
    table = Table(PagedKVCache(num_blocks, 4), config, waiting=waiting)
    steps = 0
    while table.waiting or table.running:
        done = table.step()
        assert done
        assert sum(done.values()) <= config.max_tokens_per_batch
        assert len(table.running) <= config.max_batch_size
        steps += 1
        assert steps < 2_000

    assert table.cache.num_available == num_blocks
