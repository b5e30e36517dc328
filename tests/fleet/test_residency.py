"""Which lanes are awake and which requests go, in simulated time: never too many, in order, and no slot is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.fleet.testing import Gate, LaneSpec, Phase, Residency
from mac_runner.spec import SwapConfig
from tests.faults.tier import SCALE
from tests.sim.fake_fleet import spec
from tests.sim.shuffled import ShuffledLoop
from tests.sim.timeline import Timeline


def swap(policy: str, residency_s: float = 20.0) -> SwapConfig:
    return SwapConfig.model_validate({"policy": policy, "residency_s": residency_s})


class Places(Timeline):
    """Performs what is decided; each swap takes `swap_s`. Checks the promises at each step."""

    def __init__(self, lanes: list[LaneSpec], config: SwapConfig, resident: int, swap_s: float) -> None:
        super().__init__()
        self.residency = Residency(config, lanes, resident)
        self.lanes = {lane.name: lane for lane in lanes}
        self.resident, self.swap_s = resident, swap_s
        self.swaps = 0
        self.awake: set[str] = set()
        self.leaving: set[str] = set()
        self.flights: dict[int, str] = {}
        self.asked: dict[int, tuple[str, float]] = {}
        self.longest_wait_s = 0.0
        self.on_grant: Callable[[int, str], None] = lambda _ticket, _lane: None
        for lane in self.lanes:
            self.residency.available(lane, 0.0, is_wanted=False)

    def ask(self, agent: str, model: str) -> int:
        ticket = self.residency.ask(model, self.now_s)
        self.asked[ticket] = agent, self.now_s
        return ticket

    def agents(self, tickets: Iterable[int]) -> list[str]:
        return [self.asked[ticket][0] for ticket in tickets]

    def waiting(self) -> list[str]:
        """The agents that wait, in the order in which they asked."""
        models = {lane.model for lane in self.lanes.values()}
        return self.agents(sorted(ticket for model in models for ticket in self.residency.waiting_for(model)))

    def leave(self, ticket: int) -> None:
        self.flights.pop(ticket)
        self.residency.left(ticket)

    def settle(self) -> None:
        decision = self.residency.decide(self.now_s)
        for ticket, lane in decision.grants:
            assert lane in self.awake
            self.flights[ticket] = lane
            assert list(self.flights.values()).count(lane) <= self.lanes[lane].slots
            self.longest_wait_s = max(self.longest_wait_s, self.now_s - self.asked[ticket][1])
            self.on_grant(ticket, lane)
        self.leaving.update(exchange.out for exchange in decision.swaps)
        for lane in decision.enters:
            place = self.lanes[lane].place.number
            assert sum(self.lanes[other].place.number == place for other in self.awake) < self.resident
            self.awake.add(lane)
            self.at(self.swap_s / 2, lambda lane=lane: self.residency.up(lane, self.now_s))  # type: ignore[misc]
        dry = [lane for lane in sorted(self.leaving) if lane not in self.flights.values()]
        for lane in dry:
            assert not self.residency.in_flight(lane)
            self.leaving.remove(lane)
            self.swaps += 1
            self.at(self.swap_s / 2, lambda lane=lane: self._asleep(lane))  # type: ignore[misc]
        if (due_at_s := self.residency.due_at_s(self.now_s)) is not None:
            self.at(due_at_s - self.now_s, lambda: None)

    def _asleep(self, lane: str) -> None:
        self.awake.remove(lane)
        self.residency.gone(lane)
        self.residency.available(lane, self.now_s, is_wanted=False)

    def run(self, until_s: float) -> None:
        self.settle()
        while self.queue and self.queue[0][0] <= until_s:
            self.happen()
            if not self.queue or self.queue[0][0] > self.now_s:
                self.settle()


RUNTIMES_S = {"A1": [4.0, 3.0], "A2": [8.0, 6.0], "A3": [4.0, 2.0]}
"""Turn 0 and turn 1 of each agent; turn 2 is long."""


def timeline(lanes: list[LaneSpec], resident: int) -> list[tuple[float, str, list[str], list[str]]]:
    """What the table has: the time, who completes, who waits and who is active then."""
    places = Places(lanes, swap("fifo"), resident, swap_s=0.0)
    models = {agent: lanes[number % len(lanes)].model for number, agent in enumerate(RUNTIMES_S)}
    turns = dict.fromkeys(RUNTIMES_S, -1)
    rows: list[tuple[float, str, list[str], list[str]]] = []

    def begin(ticket: int, _lane: str) -> None:
        agent = places.asked[ticket][0]
        turns[agent] += 1
        took_s = (*RUNTIMES_S[agent], 100.0)[turns[agent]]
        places.at(took_s, lambda: complete(agent, ticket))

    def complete(agent: str, ticket: int) -> None:
        places.leave(ticket)
        places.ask(agent, models[agent])
        places.settle()
        row = sorted(places.agents(places.flights)), places.waiting()
        rows.append((places.now_s, agent, *row))

    places.on_grant = begin
    for agent in RUNTIMES_S:
        places.ask(agent, models[agent])
    places.run(20.0)
    return rows


def test_fifo_is_the_timeline_of_the_specification() -> None:
    """Section 5.1: one GPU, two active slots, three agents with a checkpoint each; weights are swapped in no time."""
    rows = timeline([spec(model, 0, slots=1) for model in ("m1", "m2", "m3")], resident=2)

    assert [(at_s, agent) for at_s, agent, _, _ in rows] == [
        *((4, "A1"), (8, "A2"), (8, "A3"), (11, "A1"), (13, "A3"), (14, "A2"))
    ]


def test_fifo_with_one_model_is_the_same_timeline_with_its_queue() -> None:
    """Who is active and who waits after each row of the table."""
    rows = timeline([spec("m", 0, 2)], resident=1)

    assert rows == [
        (4, "A1", ["A2", "A3"], ["A1"]),
        (8, "A2", ["A1", "A3"], ["A2"]),
        (8, "A3", ["A1", "A2"], ["A3"]),
        (11, "A1", ["A2", "A3"], ["A1"]),
        (13, "A3", ["A1", "A2"], ["A3"]),
        (14, "A2", ["A1", "A3"], ["A2"]),
    ]


def test_fifo_request_waits_behind_one_whose_model_is_not_awake() -> None:
    places = Places([spec("a", 0, 4), spec("b", 0, 4)], swap("fifo"), resident=1, swap_s=2.0)
    first = places.ask("x", "a")
    places.run(1.5)
    places.ask("y", "b")
    later = places.ask("z", "a")
    places.settle()

    assert list(places.flights) == [first]
    assert places.waiting() == ["y", "z"]
    places.leave(first)
    places.run(4.0)
    assert places.asked[next(iter(places.flights))][0] == "y"
    assert later not in places.flights


def test_batch_keeps_a_lane_while_its_queue_has_requests_then_for_its_residency() -> None:
    places = Places([spec("a", 0, 1), spec("b", 0, 1)], swap("batch", 20.0), resident=1, swap_s=0.0)
    tickets = [places.ask("x", "a") for _ in range(50)]
    places.run(0.0)
    places.ask("y", "b")

    def finish() -> None:
        for ticket in list(places.flights):
            if places.asked[ticket][0] == "x":
                places.leave(ticket)

    for second in range(1, 30):
        places.at(second, finish)
    places.run(19.5)
    assert places.residency.phase("a@0") is Phase.IN
    places.run(21.5)
    assert places.residency.phase("b@0") is Phase.IN
    assert len(tickets) > 21


def test_batch_gives_a_dry_lane_away_at_once() -> None:
    places = Places([spec("a", 0, 8), spec("b", 0, 8)], swap("batch", 1000.0), resident=1, swap_s=0.0)
    ticket = places.ask("x", "a")
    places.run(1.0)
    places.ask("y", "b")
    places.settle()

    assert places.leaving == {"a@0"}
    places.leave(ticket)
    places.run(2.0)
    assert places.residency.phase("b@0") is Phase.IN


def test_one_request_brings_one_lane_in() -> None:
    lanes = [spec(model, place, 4) for place in range(3) for model in ("a", "b")]
    places = Places(lanes, swap("batch"), resident=1, swap_s=2.0)
    for _ in range(12):
        places.ask("x", "a")
    places.run(5.0)
    assert places.awake == {"a@0", "a@1", "a@2"}
    for ticket in list(places.flights):
        places.leave(ticket)
    places.ask("y", "b")
    places.run(10.0)

    assert len([lane for lane in places.awake if lane.startswith("b")]) == 1


def test_request_that_gives_up_waiting_is_forgotten() -> None:
    places = Places([spec("a", 0, 1), spec("b", 0, 1)], swap("fifo"), resident=1, swap_s=2.0)
    ticket = places.ask("x", "a")
    places.residency.left(ticket)
    places.ask("y", "b")
    places.run(5.0)

    assert list(places.flights.values()) == ["b@0"]


REPLY_MAX_S = 10.0


@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["batch", "fifo"]),
    models=st.integers(1, 5),
    numbers=st.integers(1, 3),
    resident=st.integers(1, 2),
    agents=st.integers(1, 20),
)
@settings(max_examples=120 * SCALE, deadline=None)
def test_every_request_is_served_in_bounded_time(
    seed: int, policy: str, models: int, numbers: int, resident: int, agents: int
) -> None:
    """`Places` checks seats, slots and drains at each step; here nobody starves."""
    random, slots, swap_s, residency_s = Random(seed), 3, 2.0, 5.0
    lanes = [spec("abcde"[model], place, slots) for model in range(models) for place in range(numbers)]
    places = Places(lanes, swap(policy, residency_s), resident, swap_s)
    turns = dict.fromkeys(range(agents), 5)

    def begin(ticket: int, _lane: str) -> None:
        places.at(random.uniform(0.1, REPLY_MAX_S), lambda: done(ticket))

    def done(ticket: int) -> None:
        number = int(places.asked[ticket][0])
        places.leave(ticket)
        turns[number] -= 1
        if turns[number]:
            places.ask(str(number), "abcde"[number % models])

    places.on_grant = begin
    for number in range(agents):
        places.ask(str(number), "abcde"[number % models])
    places.run(1e6)

    assert not any(turns.values())
    turn_s = residency_s + REPLY_MAX_S + swap_s
    rounds = -(-agents // slots) if policy == "batch" else agents
    assert places.longest_wait_s <= (models + 1) * rounds * turn_s


@pytest.mark.parametrize("residency_s", [5.0, 20.0])
def test_wait_for_an_idle_model_is_bounded_by_residency_while_another_is_saturated(residency_s: float) -> None:
    """A hundred requests of one model wait; one of another comes: it is served after one residency, reply and swap."""
    places = Places([spec("a", 0, 2), spec("b", 0, 2)], swap("batch", residency_s), resident=1, swap_s=2.0)
    places.on_grant = lambda ticket, _lane: places.at(1.0, lambda: places.leave(ticket))
    for _ in range(100):
        places.ask("x", "a")
    places.run(1.0)
    late = places.ask("y", "b")
    served: list[float] = []
    was = places.on_grant

    def begin(ticket: int, lane: str) -> None:
        if ticket == late:
            served.append(places.now_s)
        was(ticket, lane)

    places.on_grant = begin
    places.run(1000.0)

    assert served[0] <= 1.0 + residency_s + 1.0 + 2.0
    assert not places.waiting()


async def storm(random: Random) -> None:
    limit, inside, entered = random.randint(0, 4), 0, list[int]()
    gate = Gate(lambda: limit)

    async def caller(number: int) -> None:
        nonlocal inside
        is_again = False
        while True:
            await gate.enter(is_again=is_again)
            inside += 1
            assert inside <= gate.inside
            entered.extend([] if is_again else [number])
            try:
                await asyncio.sleep(random.choice((0.0, 0.001, 1.0)))
            finally:
                inside -= 1
                gate.leave()
            if random.random() < 0.8:
                return
            is_again = True

    callers = []
    for number in range(30):
        callers.append(asyncio.create_task(caller(number)))
        if random.random() < 0.7:
            await asyncio.sleep(random.choice((0.0, 0.0, 0.001, 0.5)))
        if random.random() < 0.3:
            random.choice(callers).cancel()
        if random.random() < 0.2:
            limit = random.randint(0, 4)
            gate.renew()
            assert inside <= gate.inside
    limit = 2
    gate.renew()
    await asyncio.gather(*callers, return_exceptions=True)
    assert [one.exception() for one in callers if not one.cancelled()].count(None) + sum(
        one.cancelled() for one in callers
    ) == len(callers)
    assert gate.inside == inside == 0
    await asyncio.gather(gate.enter(), gate.enter())  # The loop says so if one waits for ever.


def test_no_slot_is_lost_whoever_gives_up_and_however_the_limit_changes(subtests: pytest.Subtests) -> None:
    for seed in range(300 * SCALE):
        with subtests.test(str(seed)), asyncio.Runner(loop_factory=partial(ShuffledLoop, seed)) as runner:
            runner.run(storm(Random(seed)))


def test_those_who_wait_are_let_in_in_their_order_and_those_who_come_again_first() -> None:
    async def program() -> list[str]:
        gate, entered = Gate(lambda: 1), list[str]()
        await gate.enter()

        async def caller(name: str, *, is_again: bool) -> None:
            await gate.enter(is_again=is_again)
            entered.append(name)
            gate.leave()

        calls = []
        for name in ("first", "second", "again"):
            calls.append(asyncio.create_task(caller(name, is_again=name == "again")))
            await asyncio.sleep(0.01)
        gate.leave()
        await asyncio.gather(*calls)
        return entered

    with asyncio.Runner(loop_factory=lambda: ShuffledLoop(1)) as runner:
        assert runner.run(program()) == ["again", "first", "second"]
