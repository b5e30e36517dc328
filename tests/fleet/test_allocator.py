"""Where agents are settled: distinct places until the limit, and again after each death and return."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mac_runner.fleet.testing import RoundRobinAllocator
from tests.faults.tier import SCALE


def place_of(lane: str) -> int:
    return int(lane.rpartition("@")[2])


def test_agents_get_distinct_places_until_the_limit_then_are_refused() -> None:
    allocator = RoundRobinAllocator(range(2), 2)
    lanes = [allocator.allocate(f"a{n}", f"m{n}") for n in range(4)]

    assert [place_of(lane) for lane in lanes] == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="2 other checkpoints"):
        allocator.allocate("a4", "m4")
    allocator.release("a1")
    assert allocator.allocate("a5", "m5") == "m5@1"


def test_fifteen_agents_of_one_checkpoint_share_eight_lanes() -> None:
    allocator = RoundRobinAllocator(range(8), 2)
    lanes = [allocator.allocate(f"a{n}", "m") for n in range(15)]

    assert [place_of(lane) for lane in lanes] == [*range(8), *range(7)]


def test_hint_is_honoured() -> None:
    allocator = RoundRobinAllocator(range(4), 2, lanes={"a": [0, 1, 2], "b": [3]})

    assert allocator.allocate("x", "a", lane_hint=2) == "a@2"
    assert allocator.allocate("y", "a", lane_hint=2) == "a@2"
    with pytest.raises(ValueError, match=r"lane_hint 9 .*0, 1, 2, 3"):
        allocator.allocate("z", "a", lane_hint=9)
    with pytest.raises(ValueError, match="lane_hint holds b"):
        allocator.allocate("z", "a", lane_hint=3)
    assert allocator.allocate("z", "a") == "a@0"


def test_hint_to_a_full_place_is_refused() -> None:
    allocator = RoundRobinAllocator(range(2), 1)
    allocator.allocate("x", "a", lane_hint=1)

    with pytest.raises(ValueError, match="max_agents_per_gpu is 1"):
        allocator.allocate("y", "b", lane_hint=1)


def test_stranded_agents_move_at_once_and_stay_and_new_ones_fill_the_lane_that_returns() -> None:
    allocator = RoundRobinAllocator(range(3), 2)
    for n in range(9):
        allocator.allocate(f"a{n}", "m")
    stranded = allocator.strand("m@1")
    assert stranded == ("a1", "a4", "a7")
    moved = allocator.resettle(stranded)

    assert sorted(lane for lane in moved.values() if lane) == ["m@0", "m@0", "m@2"]
    assert allocator.returned("m@1") == {}
    assert {n: allocator.lane_of(n) for n in moved} == moved
    assert [allocator.allocate(f"b{n}", "m") for n in range(4)] == ["m@1"] * 4
    assert [allocator.load(f"m@{place}") for place in range(3)] == [5, 4, 4]


def test_agents_wait_while_no_lane_of_their_model_is_up_and_are_settled_by_the_first() -> None:
    allocator = RoundRobinAllocator(range(2), 2, lanes={"a": [0, 1], "b": [0, 1]})
    allocator.allocate("x", "a")
    allocator.allocate("y", "a")
    for lane in ("a@0", "a@1"):
        allocator.resettle(allocator.strand(lane))

    assert set(allocator.waiting) == {"x", "y"}
    with pytest.raises(ValueError, match="no lane"):
        allocator.allocate("z", "a")
    assert allocator.returned("a@1") == {"x": "a@1", "y": "a@1"}
    assert allocator.waiting == ()


def test_agent_is_registered_once() -> None:
    allocator = RoundRobinAllocator(range(2), 2)
    allocator.allocate("x", "a")

    with pytest.raises(ValueError, match="registered already"):
        allocator.allocate("x", "b")


def test_more_checkpoints_than_places_take_turns_where_they_may() -> None:
    allocator = RoundRobinAllocator(range(2), 1, may_swap=True)
    lanes = [allocator.allocate(f"a{n}", f"m{n}") for n in range(6)]

    assert sorted(map(place_of, lanes)) == [0, 0, 0, 1, 1, 1]


@given(places=st.integers(1, 8), agents=st.integers(1, 40), limit=st.integers(1, 4))
@settings(max_examples=100 * SCALE, deadline=None)
def test_one_checkpoint_is_level_over_all_places(places: int, agents: int, limit: int) -> None:
    allocator = RoundRobinAllocator(range(places), limit)
    lanes = [place_of(allocator.allocate(f"a{n}", "m")) for n in range(agents)]
    loads = [lanes.count(place) for place in range(places)]

    assert max(loads) - min(loads) <= 1


class Agents(RuleBasedStateMachine):
    """Any order of arrivals, hints, departures, deaths and returns."""

    @initialize(places=st.integers(1, 8), limit=st.integers(1, 3), is_planned=st.booleans())
    def begin(self, places: int, limit: int, is_planned: bool) -> None:
        lanes = {model: range(places) for model in "abcdefgh"} if is_planned else None
        self.allocator = RoundRobinAllocator(range(places), limit, lanes=lanes, may_swap=is_planned)
        self.places, self.limit = places, 8 if is_planned else limit
        self.models: dict[str, str] = {}
        self.down: set[str] = set()
        self.opened = {f"{model}@{place}" for model, numbers in (lanes or {}).items() for place in numbers}
        self.count = 0

    def loads(self) -> dict[int, set[str]]:
        """The agents of each place."""
        loads: dict[int, set[str]] = {place: set() for place in range(self.places)}
        for agent in self.models:
            if (lane := self.allocator.lane_of(agent)) is not None:
                loads[place_of(lane)].add(agent)
        return loads

    def usable_empty(self, model: str) -> set[int]:
        return {place for place, agents in self.loads().items() if not agents and f"{model}@{place}" not in self.down}

    @precondition(lambda self: len(self.models) < 40)
    @rule(model=st.sampled_from("abcdefgh"), hint=st.none() | st.integers(0, 9))
    def arrive(self, model: str, hint: int | None) -> None:
        self.count += 1
        agent, before, empty = f"agent{self.count}", self.loads(), self.usable_empty(model)
        try:
            lane = self.allocator.allocate(agent, model, hint)
        except ValueError:
            assert not empty or (hint is not None and hint not in empty)
            assert self.loads() == before
            return
        self.models[agent] = model
        self.opened.add(lane)
        assert lane not in self.down
        assert lane.startswith(f"{model}@")
        if hint is not None:
            assert place_of(lane) == hint
        elif before[place_of(lane)]:
            assert not empty, f"{lane} was shared while {empty} had no agents"

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.models)))
        self.allocator.release(agent)
        del self.models[agent]

    @precondition(lambda self: self.opened - self.down)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.opened - self.down)))
        self.down.add(lane)
        stranded = self.allocator.strand(lane)
        moved = self.allocator.resettle(stranded)
        assert set(moved) == set(stranded)
        loads = {up: self.allocator.load(up) for up in self.opened - self.down}
        for agent, home in moved.items():
            if home is not None:
                assert home in loads
                least = min(load for up, load in loads.items() if up.startswith(f"{self.models[agent]}@"))
                assert loads[home] - least <= 1 or least == 0

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.down)))
        homes = {agent: self.allocator.lane_of(agent) for agent in self.models}
        self.down.discard(lane)
        self.allocator.returned(lane)
        for agent, home in homes.items():
            assert home is None or self.allocator.lane_of(agent) == home

    @invariant()
    def agents_are_on_lanes_that_are_up_or_wait(self) -> None:
        waiting = set(self.allocator.waiting)
        for agent in self.models:
            lane = self.allocator.lane_of(agent)
            assert (lane is None) == (agent in waiting)
            assert lane is None or lane not in self.down
        assert waiting <= set(self.models)

    @invariant()
    def places_hold_no_more_checkpoints_than_they_may(self) -> None:
        for agents in self.loads().values():
            assert len({self.models[agent] for agent in agents}) <= self.limit

    @invariant()
    def loads_are_the_agents(self) -> None:
        homes = [self.allocator.lane_of(agent) for agent in self.models]
        assert all(self.allocator.load(lane) == homes.count(lane) for lane in self.opened)


TestAgents = Agents.TestCase
TestAgents.settings = settings(max_examples=60 * SCALE, stateful_step_count=40, deadline=None)
