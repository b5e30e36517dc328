"""Engines that grow and shrink while they work: the scheduler follows, and nothing waits for a slot that is gone."""

from __future__ import annotations

from collections.abc import Callable

from mac_runner.backends.base import PassingBackend, destination, isolates, on_resize
from mac_runner.scheduler import RequestScheduler
from mac_runner.scheduler.state import Answered, Depart, Finished, ModelReady, Open, Opened, Resized, Stop
from mac_runner.types import Destination, Request, Turn
from tests.sim.engine import SimulatedEngine


class ManyServers(SimulatedEngine):
    """An engine with everything that a backend of several servers says of itself."""

    isolates = True

    def on_resize(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def destination(self, request: Request) -> Destination | None:
        return Destination(server=f"http://{request.conversation}")


def turn(seat: int, model: str = "m") -> Turn:
    return Turn(round=0, agent=f"a{seat}", model=model, place=seat)


def departed(actions: list[object]) -> list[str]:
    return [action.turn.key for action in actions if isinstance(action, Depart)]


def opened(scheduler: RequestScheduler, *turns: Turn, conversation: int = 0) -> list[object]:
    return [*scheduler.handle(Opened(conversation, turns, 0))]


def test_what_a_backend_of_several_servers_says_is_heard_through_those_that_pass_it_on() -> None:
    backend, told = ManyServers(), list[str]()
    outer = PassingBackend(PassingBackend(backend))

    assert on_resize(outer, lambda: told.append("resized"))
    backend.tell()
    assert told == ["resized"]
    assert isolates(outer)
    assert not on_resize(PassingBackend(SimulatedEngine()), lambda: None)
    assert not isolates(PassingBackend(SimulatedEngine()))
    assert destination(PassingBackend(SimulatedEngine()), None) is None  # type: ignore[arg-type]


def test_engine_that_shrinks_keeps_what_is_in_flight_and_gets_no_more_until_that_is_less() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 3))
    turns = tuple(turn(seat) for seat in range(5))
    assert len(departed(opened(scheduler, *turns))) == 3

    assert departed([*scheduler.handle(Resized("m", 2))]) == []
    scheduler.validate()
    assert departed([*scheduler.handle(Answered(0, turns[0], turns[1:], 0))]) == []
    scheduler.validate()
    assert len(departed([*scheduler.handle(Answered(0, turns[1], turns[2:], 0))])) == 1
    scheduler.validate()
    assert len(departed([*scheduler.handle(Resized("m", 3))])) == 1
    scheduler.validate()


def test_engine_that_shrinks_takes_no_slot_of_another() -> None:
    for concurrency, expected in ((None, 2), (5, 1), (4, 0)):
        scheduler = RequestScheduler(concurrency)
        scheduler.handle(ModelReady("m", 4))
        scheduler.handle(ModelReady("n", 2))
        assert len(departed(opened(scheduler, *(turn(seat) for seat in range(4))))) == 4
        scheduler.handle(Resized("m", 1))

        others = opened(scheduler, turn(0, "n"), turn(1, "n"), turn(2, "n"), conversation=1)

        assert len(departed(others)) == expected, concurrency
        scheduler.validate()


def test_engine_without_capacity_is_waited_for_and_stops_in_good_order() -> None:
    scheduler = RequestScheduler()
    assert scheduler.handle(ModelReady("m", 0)) == []
    assert scheduler.slots == 0
    assert scheduler.handle(Resized("m", 1)) == [Open()]
    assert len(departed(opened(scheduler, turn(0), turn(1)))) == 1
    assert scheduler.handle(Resized("m", 0)) == []
    assert scheduler.effective_capacity("m") == 0
    assert scheduler.handle(Answered(0, turn(0), (turn(1),), 0)) == []
    assert scheduler.waiting("m") == 1
    scheduler.validate()

    assert scheduler.handle(Stop()) == [Finished()]
    scheduler.validate()
