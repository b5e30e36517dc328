"""Claims against simulated locks: who gets which shard, whatever dies and whenever somebody looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, cast

from mac_runner.errors import RunLockedError
from mac_runner.runs.testing import Claims

if TYPE_CHECKING:
    from mac_runner.runs import Setup
    from mac_runner.runs.testing import OpenRun

SEEDS = 300


@dataclass
class Shared:
    """A directory of shards: who holds which, which are complete, and which have the note of a dead worker."""

    of: int
    held: dict[str, int] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    left_behind: set[str] = field(default_factory=set)
    looks_at_contents: int = 0

    def claims(self, worker: int) -> Claims:
        """What a worker knows that has just come."""

        def open_claimed(part: Setup) -> OpenRun:
            name = str(part)
            if name in self.held:
                raise RunLockedError(f"{name} is held by {self.held[name]}")
            self.held[name] = worker
            self.left_behind.discard(name)
            return cast("OpenRun", name)

        def is_complete(part: Setup) -> bool:
            self.looks_at_contents += 1
            return str(part) in self.complete

        names = [f"{number}-of-{self.of}" for number in range(1, self.of + 1)]
        return Claims(
            [cast("Setup", name) for name in names],
            open_claimed,
            is_free=lambda part: str(part) not in self.held and str(part) not in self.left_behind,
            is_complete=is_complete,
        )

    def finish(self, name: str) -> None:
        """A shard was played to its end, and its directory closed."""
        del self.held[name]
        self.complete.add(name)

    def bury(self, worker: int) -> None:
        """A worker was killed: its locks are gone, its notes stay."""
        mine = {name for name, holder in self.held.items() if holder == worker}
        self.left_behind |= mine
        for name in mine:
            del self.held[name]


def test_every_shard_is_played_by_one_worker_at_a_time_whoever_dies() -> None:
    for seed in range(SEEDS):
        chance, shared = Random(seed), Shared(of=7)
        workers = {number: shared.claims(number) for number in range(4)}
        deaths = 0
        while not all(claims.is_over for claims in workers.values()) or shared.held:
            number = chance.choice([*workers])
            mine = [name for name, holder in shared.held.items() if holder == number]
            if deaths < 12 and chance.random() < 0.1:
                shared.bury(number)
                deaths += 1
                workers[number] = shared.claims(number)
            elif mine and chance.random() < 0.5:
                shared.finish(chance.choice(mine))
            elif (opened := workers[number].open_next()) is not None:
                assert str(opened) not in shared.complete or not shared.left_behind
        assert len(shared.complete) == 7, f"seed {seed}"


def test_first_free_shard_is_claimed_and_a_held_one_is_passed_over() -> None:
    shared = Shared(of=3)
    first, second = shared.claims(1), shared.claims(2)

    got = [str(claims.open_next()) for claims in (first, second, first)]

    assert got == ["1-of-3", "2-of-3", "3-of-3"]
    assert second.open_next() is None


def test_worker_is_not_done_while_another_one_holds_a_shard_that_may_become_free() -> None:
    shared = Shared(of=2)
    first, second = shared.claims(1), shared.claims(2)
    first.open_next()
    second.open_next()

    assert second.open_next() is None
    assert not second.is_over
    shared.bury(1)
    assert second.open_next() == cast("OpenRun", "1-of-2")
    assert second.is_over


def test_shard_in_use_is_not_read_while_it_is_waited_for() -> None:
    shared = Shared(of=50)
    first, second = shared.claims(1), shared.claims(2)
    while first.open_next() is not None:
        pass
    shared.looks_at_contents = 0

    for _ in range(10):
        assert second.open_next() is None

    assert shared.looks_at_contents == 0
