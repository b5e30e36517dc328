"""Where agents are settled: distinct places first, and again after each death and return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mac_runner.errors import ConfigError
from mac_runner.fleet.testing import RoundRobinAllocator
from tests.faults.tier import SCALE
from tests.sim.fake_fleet import spec


def place_of(lane: str) -> int:
    return int(lane.rpartition("@")[2])


def over(models: Mapping[str, Iterable[int]]) -> RoundRobinAllocator:
    """For models with a lane on each of these places, all of which are up."""
    lanes = [spec(model, place) for model, places in models.items() for place in places]
    allocator = RoundRobinAllocator(lanes)
    for model, places in models.items():
        allocator.follow(model, {f"{model}@{place}" for place in places})
    return allocator


def test_agents_of_all_checkpoints_get_distinct_places_first() -> None:
    allocator = over({f"m{n}": range(2) for n in range(4)})
    lanes = [allocator.allocate(f"a{n}", f"m{n}") for n in range(4)]

    assert [place_of(lane) for lane in lanes[:2]] == [0, 1]
    assert lanes == [f"m{n}@{place_of(lane)}" for n, lane in enumerate(lanes)]


def test_fifteen_agents_of_one_checkpoint_share_eight_lanes() -> None:
    allocator = over({"m": range(8)})
    lanes = [allocator.allocate(f"a{n}", "m") for n in range(15)]

    assert [place_of(lane) for lane in lanes] == [*range(8), *range(7)]


def test_two_lanes_of_one_checkpoint_on_a_place_share_its_agents_and_stand_in_for_each_other() -> None:
    lanes = [spec("m", 0), replace(spec("m", 0), name="m@0.2")]
    allocator = RoundRobinAllocator(lanes)
    allocator.follow("m", {"m@0", "m@0.2"})

    assert [allocator.allocate(f"a{n}", "m", lane_hint=0) for n in range(4)] == ["m@0", "m@0.2"] * 2
    allocator.follow("m", {"m@0"})
    assert {allocator.lane_of(f"a{n}") for n in range(4)} == {"m@0"}


def test_hint_is_honoured() -> None:
    allocator = over({"a": [0, 1, 2], "b": [3]})

    assert allocator.allocate("x", "a", lane_hint=2) == "a@2"
    assert allocator.allocate("y", "a", lane_hint=2) == "a@2"
    with pytest.raises(ConfigError, match=r"lane_hint 9 .*0, 1, 2, 3"):
        allocator.allocate("z", "a", lane_hint=9)
    with pytest.raises(ConfigError, match="place 3 of lane_hint has no lane of a"):
        allocator.allocate("z", "a", lane_hint=3)
    assert allocator.allocate("z", "a") == "a@0"


def test_stranded_agents_move_at_once_and_stay_and_new_ones_fill_the_lane_that_returns() -> None:
    allocator = over({"m": range(3)})
    for n in range(9):
        allocator.allocate(f"a{n}", "m")
    allocator.follow("m", {"m@0", "m@2"})
    moved = [allocator.lane_of(f"a{n}") for n in (1, 4, 7)]
    assert sorted(lane for lane in moved if lane) == ["m@0", "m@0", "m@2"]

    allocator.follow("m", {"m@0", "m@1", "m@2"})
    assert [allocator.lane_of(f"a{n}") for n in (1, 4, 7)] == moved
    assert [allocator.allocate(f"b{n}", "m") for n in range(4)] == ["m@1"] * 4


def test_agents_wait_while_no_lane_of_their_model_is_up_and_are_settled_by_the_first() -> None:
    allocator = over({"a": [0, 1], "b": [0, 1]})
    allocator.allocate("x", "a")
    allocator.allocate("y", "a")
    allocator.follow("a", ())

    assert (allocator.lane_of("x"), allocator.lane_of("y")) == (None, None)
    with pytest.raises(ConfigError, match=r"no lane of a is up \(a@0, a@1\)"):
        allocator.allocate("z", "a")
    allocator.follow("a", {"a@1"})
    assert (allocator.lane_of("x"), allocator.lane_of("y")) == ("a@1", "a@1")


def test_lane_that_is_still_starting_gets_its_share() -> None:
    allocator = RoundRobinAllocator([spec("m", place) for place in range(4)])
    allocator.follow("m", {"m@0"})

    assert [allocator.allocate(f"a{n}", "m") for n in range(4)] == ["m@0", "m@1", "m@2", "m@3"]


@given(places=st.integers(1, 8), agents=st.integers(1, 40))
@settings(max_examples=100 * SCALE, deadline=None)
def test_one_checkpoint_is_level_over_all_places(places: int, agents: int) -> None:
    allocator = over({"m": range(places)})
    lanes = [place_of(allocator.allocate(f"a{n}", "m")) for n in range(agents)]
    loads = [lanes.count(place) for place in range(places)]

    assert max(loads) - min(loads) <= 1


class Agents(RuleBasedStateMachine):
    """Any order of arrivals, hints, deaths and returns."""

    @initialize(places=st.integers(1, 8))
    def begin(self, places: int) -> None:
        self.allocator = over({model: range(places) for model in "abcdefgh"})
        self.places = places
        self.models: dict[str, str] = {}
        self.down: set[str] = set()
        self.all = {f"{model}@{place}" for model in "abcdefgh" for place in range(places)}

    def homes(self) -> dict[str, str | None]:
        return {agent: self.allocator.lane_of(agent) for agent in self.models}

    def follow(self, model: str) -> None:
        self.allocator.follow(model, {lane for lane in self.all - self.down if lane.startswith(f"{model}@")})

    @precondition(lambda self: len(self.models) < 40)
    @rule(model=st.sampled_from("abcdefgh"), hint=st.none() | st.integers(0, 9))
    def arrive(self, model: str, hint: int | None) -> None:
        agent, before = f"agent{len(self.models)}", self.homes()
        used = {place_of(lane) for lane in before.values() if lane is not None}
        empty = {place for place in range(self.places) if place not in used and f"{model}@{place}" not in self.down}
        try:
            lane = self.allocator.allocate(agent, model, hint)
        except ConfigError:
            assert not empty or (hint is not None and hint not in empty)
            assert self.homes() == before
            return
        self.models[agent] = model
        assert lane in self.all - self.down
        assert lane.startswith(f"{model}@")
        if hint is not None:
            assert place_of(lane) == hint
        elif place_of(lane) in used:
            assert not empty, f"{lane} was shared while {empty} had no agents"

    @precondition(lambda self: self.all - self.down)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.all - self.down)))
        before = self.homes()
        self.down.add(lane)
        self.follow(lane[0])
        loads = Counter(self.homes().values())
        for agent, home in self.homes().items():
            assert home == before[agent] or before[agent] == lane, f"{agent} moved though its lane is up"
            if home != before[agent] and home is not None:
                least = min(loads[up] for up in self.all - self.down if up[0] == lane[0])
                assert loads[home] - least <= 1 or least == 0

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.down)))
        before = self.homes()
        self.down.discard(lane)
        self.follow(lane[0])
        assert all(before[agent] in (home, None) for agent, home in self.homes().items())

    @invariant()
    def agents_are_on_lanes_of_theirs_that_are_up_or_none_is(self) -> None:
        for agent, model in self.models.items():
            lane = self.allocator.lane_of(agent)
            up = {lane for lane in self.all - self.down if lane[0] == model}
            assert lane in up if up else lane is None


TestAgents = Agents.TestCase
TestAgents.settings = settings(max_examples=60 * SCALE, stateful_step_count=40, deadline=None)
