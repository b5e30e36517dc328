"""A random world around a RequestScheduler: conversations that ask, engines that answer, fail or never do.

It performs the actions and sends back events in an order drawn from its seed, validates after each of them, and keeps a
trace. Conversations here are the simplest that have everything: rounds, agents that wait for others, continuations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from msgspec import structs

from mac_runner.scheduler import RequestScheduler
from mac_runner.scheduler.testing import (
    Action,
    Answered,
    Depart,
    Event,
    Faulted,
    Finished,
    ModelReady,
    Open,
    Opened,
    Resized,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    Settle,
    Stop,
    TasksExhausted,
)
from mac_runner.types import Turn


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How wild a world is."""

    conversations: int = 12
    agents_max: int = 5
    rounds_max: int = 4
    capacities: tuple[int, ...] = (2, 3)
    token_budgets: tuple[int | None, ...] = (None, None)
    lookaheads: tuple[int, ...] = (0, 0)
    concurrency: int | None = None
    followup_rate: float = 0.2
    fault_rate: float = 0.2
    suspect_rate: float = 0.0
    busy_rate: float = 0.0
    failure_rate: float = 0.05
    resizes: int = 0
    """How often an engine changes its size."""

    @staticmethod
    def draw(random: Random) -> Shape:
        """Any shape. A turn needs 1 to 100 tokens, so some budgets are too small for any two, or even for one."""
        models = random.randint(1, 4)
        return Shape(
            conversations=random.randint(0, 25),
            agents_max=random.randint(1, 7),
            rounds_max=random.randint(1, 5),
            capacities=tuple(random.randint(1, 6) for _ in range(models)),
            token_budgets=tuple(random.choice([None, None, 50, 200]) for _ in range(models)),
            lookaheads=tuple(random.choice([0, 0, 1, 3]) for _ in range(models)),
            concurrency=random.choice([None, 1, 2, 5, 100]),
            followup_rate=random.choice([0.0, 0.3]),
            fault_rate=random.choice([0.0, 0.2, 0.6]),
            suspect_rate=random.choice([0.0, 0.2]),
            busy_rate=random.choice([0.0, 0.0, 0.5, 1.0]),
            failure_rate=random.choice([0.0, 0.02, 0.2]),
            resizes=random.choice([0, 0, 5, 40]),
        )


def play(seed: int) -> Shape:
    """Play a world to its end; every conversation in it ends once, and a stop stops it. What it was like."""
    world = World(seed)
    world.run()
    assert sorted(world.settled) == list(range(world.shape.conversations)), "a conversation is lost"
    stopped = World(seed)
    for _ in range(Random(seed).randint(1, 40)):
        if not stopped.is_finished:
            stopped.step()
    if not stopped.is_finished:
        stopped.stop()
        stopped.run()
    assert not stopped.flying, "a request was left in flight"
    return world.shape


@dataclass
class Asking:
    """One conversation of the world."""

    seats: list[Turn]
    rounds: int
    round: int = 0
    open: dict[int, Turn] = field(default_factory=dict)

    def begin_round(self) -> None:
        self.open = {turn.place: structs.replace(turn, round=self.round) for turn in self.seats}

    def answer(self, turn: Turn, *, goes_on: bool) -> None:
        del self.open[turn.place]
        if goes_on:
            self.open[turn.place] = structs.replace(turn, step=turn.step + 1)
        elif not self.open:
            self.round += 1
            if self.round < self.rounds:
                self.begin_round()


class World:
    """Drives one scheduler to its end."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.random = Random(seed)
        self.shape = Shape.draw(self.random) if shape is None else shape
        self.scheduler = RequestScheduler(self.shape.concurrency)
        self.asking: dict[int, Asking] = {}
        self.opened = 0
        self.flying: list[Depart] = []
        self.pausing: list[RetryLater | Rest] = []
        self.is_open_wanted = False
        self.is_finished = False
        self.is_stopped = False
        self.settled: list[int] = []
        self.failed: set[int] = set()
        self.departures: list[Depart] = []
        self.trace: list[Event | Action] = []
        self.now_s = 0.0
        self.resizes_left = self.shape.resizes
        self.sizes = dict[str, Resized]()
        for number, capacity in enumerate(self.shape.capacities):
            budget, lookahead = self.shape.token_budgets[number], self.shape.lookaheads[number]
            self.send(ModelReady(f"model-{number}", capacity, budget, lookahead))

    def send(self, event: Event) -> list[Action]:
        """One event, its actions performed, everything validated."""
        self.now_s += 1.0
        actions = self.scheduler.handle(event, self.now_s)
        self.trace += [event, *actions]
        for action in actions:
            self._perform(action)
        self.scheduler.validate()
        return actions

    def run(self, steps_max: int = 100_000) -> None:
        """Until Finished. Nothing left to do before that is a deadlock."""
        for _ in range(steps_max):
            if self.is_finished:
                return
            self.step()
        raise AssertionError("the world goes on for ever")

    def step(self) -> None:
        """Let one of the things happen that can happen next."""
        choices = (
            [self._land] * len(self.flying) + [self._wake] * len(self.pausing) + [self._open] * self.is_open_wanted
        )
        choices += [self._resize] * (self.resizes_left > 0)
        if self.is_stopped:
            choices = [self._land] * len(self.flying)
        if not choices and any(not size.capacity for size in self.sizes.values()):
            choices = [self._recover]
        assert choices, "nothing can happen, and the scheduler is not finished"
        self.random.choice(choices)()

    def _check_size(self, model: str) -> None:
        """An engine gets no request beyond its size."""
        number = int(model.rpartition("-")[2])
        size = self.sizes.get(model)
        most = self.shape.capacities[number] + self.shape.lookaheads[number]
        most = most if size is None else size.capacity + size.lookahead
        flying = sum(depart.turn.model == model for depart in self.flying)
        assert flying <= most, f"{flying} requests are in flight on {model}, which takes {most}"

    def isolates(self, model: str) -> bool:
        """Whether an engine serves suspects alone on one of its servers."""
        return model in self.sizes and self.sizes[model].isolates

    def stop(self) -> None:
        """Ask it to stop."""
        self.is_stopped = True
        self.is_open_wanted = False
        self.send(Stop())

    def _resize(self) -> None:
        self.resizes_left -= 1
        random, number = self.random, self.random.randrange(len(self.shape.capacities))
        size = Resized(
            f"model-{number}",
            random.choice([0, 1, self.shape.capacities[number], 9]),
            random.choice([0, 0, 3]),
            isolates=random.random() < 0.5,
        )
        self.sizes[size.model] = size
        self.send(size)

    def _recover(self) -> None:
        """All engines that serve nothing serve again."""
        for model, size in list(self.sizes.items()):
            if not size.capacity:
                self.sizes[model] = structs.replace(size, capacity=1)
                self.send(self.sizes[model])

    def _perform(self, action: Action) -> None:
        match action:
            case Depart():
                assert not self.is_stopped
                assert action.conversation not in self.settled
                assert not action.is_isolated or self.isolates(action.turn.model)
                self.flying.append(action)
                self._check_size(action.turn.model)
                self.departures.append(action)
            case RetryLater() | Rest():
                self.pausing.append(action)
            case Open():
                assert not self.is_open_wanted
                assert not self.is_stopped
                self.is_open_wanted = True
            case Settle():
                assert action.conversation not in self.settled
                assert all(depart.conversation != action.conversation for depart in self.flying)
                self.settled.append(action.conversation)
            case Finished():
                assert not self.is_finished
                self.is_finished = True

    def _open(self) -> None:
        self.is_open_wanted = False
        if self.opened == self.shape.conversations:
            self.send(TasksExhausted())
            return
        index, self.opened = self.opened, self.opened + 1
        self.asking[index] = asking = self._new()
        turns = tuple(asking.open.values())
        suspects = frozenset(turn.key for turn in turns if self.random.random() < self.shape.suspect_rate)
        self.send(Opened(index, turns, 0, needs=self._needs(asking), suspects=suspects))

    def _new(self) -> Asking:
        random, shape = self.random, self.shape
        names = [f"agent-{seat}" for seat in range(random.randint(1, shape.agents_max))]
        seats = [
            Turn(
                round=0,
                agent=name,
                model=f"model-{random.randrange(len(shape.capacities))}",
                place=seat,
                # Only earlier seats are waited for, so no circle can close.
                after=frozenset(random.sample(names[:seat], random.randint(0, seat)) if random.random() < 0.5 else ()),
            )
            for seat, name in enumerate(names)
        ]
        asking = Asking(seats=seats, rounds=random.randint(1, shape.rounds_max))
        asking.begin_round()
        return asking

    def _needs(self, asking: Asking) -> dict[str, int]:
        return {turn.agent: self.random.randint(1, 100) for turn in asking.open.values()}

    def _wake(self) -> None:
        pause = self.pausing.pop(self.random.randrange(len(self.pausing)))
        if isinstance(pause, Rest):
            self.send(RestOver(pause.model))
        else:
            self.send(RetryDue(pause.conversation, pause.turn))

    def _land(self) -> None:
        random, shape = self.random, self.shape
        depart = self.flying.pop(random.randrange(len(self.flying)))
        conversation, turn = depart.conversation, depart.turn
        if random.random() < shape.failure_rate:
            self.failed.add(conversation)
            self.send(Faulted(conversation, turn, None, is_turned_away=random.random() < shape.busy_rate))
        elif random.random() < shape.fault_rate:
            is_suspect, is_busy = random.random() < shape.suspect_rate, random.random() < shape.busy_rate
            self.send(Faulted(conversation, turn, random.random(), is_suspect, is_busy))
        else:
            asking = self.asking[conversation]
            asking.answer(turn, goes_on=random.random() < shape.followup_rate)
            self.send(Answered(conversation, turn, tuple(asking.open.values()), asking.round, self._needs(asking)))
