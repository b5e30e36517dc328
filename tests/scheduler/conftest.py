"""A stage: one call plays a toy experiment in simulated time. A desk: it hands events to a scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from mac_runner.backends import Backend
from mac_runner.environments import Environment
from mac_runner.planning.testing import SimulatedClock
from mac_runner.scheduler import Progress, RequestScheduler, RunResult
from mac_runner.scheduler.testing import Action, Answered, Depart, Event, Faulted, ModelReady, Opened
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonValue, Turn
from tests.sim.conversations import run_conversations
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.shuffled import simulate
from tests.sim.toy import Break, ToyEnvironment, Work, tasks


@dataclass
class Stage:
    """A run about to be played; each field can be changed before `play`."""

    work: Work = field(default_factory=lambda: tasks(12))
    environment: Environment = field(default_factory=ToyEnvironment)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    retry: RetryConfig = field(default_factory=lambda: RetryConfig(max_attempts=50))
    concurrency: int | None = None
    loop_seed: int = 0
    stop_at_s: float | None = None
    progress: Progress = field(default_factory=lambda: Progress(planned=0))
    fails_at_s: float | None = None
    ended_at_s: float = 0.0
    said: list[str] = field(default_factory=list)
    result: RunResult = field(init=False)

    def engines(self, **settings: object) -> tuple[SimulatedEngine, SimulatedEngine]:
        """Two simulated engines of the same kind, and have the run use them."""
        first, second = SimulatedEngine(**settings), SimulatedEngine(**settings)  # type: ignore[arg-type]
        self.backends = {"model-0": first, "model-1": second}
        return first, second

    def play(self) -> RunResult:
        """Run it to its end."""
        self.result = simulate(self.program, seed=self.loop_seed)
        return self.result

    def counts(self) -> tuple[int, int]:
        """Run it to its end: how many conversations finished, and how many failed."""
        result = self.play()
        return result.finished, result.failed

    @property
    def accounts(self) -> list[dict[str, float]]:
        """What the last account says of each model."""
        models = cast("dict[str, dict[str, float]]", self.recorder.checkpoints[-1]["models"])
        return [*models.values()]

    @property
    def failures(self) -> list[str]:
        """Why conversations failed."""
        return [str(t["failure"]) for t in self.recorder.transcripts.values() if t["failure"] is not None]

    @property
    def pauses_s(self) -> list[float]:
        """How long each request waited before it was sent again."""
        return [cast("float", fields["delay_s"]) for fields in self.recorder.named("EVENT_RETRY")]

    async def program(self) -> RunResult:
        """The run, to be run on a simulated loop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        if self.stop_at_s is not None:
            loop.call_later(self.stop_at_s, stop.set)
        if self.fails_at_s is not None:
            loop.call_later(self.fails_at_s, self.recorder.fail)
        if not self.backends:
            self.engines()
        try:
            return await self.run(stop)
        finally:
            self.ended_at_s = loop.time()

    async def run(self, stop: asyncio.Event) -> RunResult:
        """What is played."""
        return await run_conversations(
            environment=self.environment,
            environment_name="toy",
            experiment_name="toys",
            work=iter(self.work),
            backends=self.backends,
            recorder=self.recorder,
            retry=self.retry,
            concurrency=self.concurrency,
            clock=SimulatedClock(),
            stop=stop,
            progress=self.progress,
            say=self.said.append,
        )


def alone(engine: SimulatedEngine, work: int | Work = 12, *, agents: int = 4, **more: Any) -> Stage:
    """A run of so many conversations on one engine."""
    planned = tasks(work, agents=agents, models=1) if isinstance(work, int) else work
    return Stage(work=planned, backends={"model-0": engine}, **more)


@cache
def undisturbed(
    conversations: int = 12, *, agents: int = 4, models: int = 1, breaks: Break | None = None
) -> dict[str, JsonValue]:
    """The transcripts of a run in which nothing goes wrong."""
    engines = {f"model-{number}": SimulatedEngine(capacity=100) for number in range(models)}
    stage = Stage(tasks(conversations, agents=agents, models=models), ToyEnvironment(breaks), engines)
    stage.play()
    return stage.recorder.results()


class Desk(RequestScheduler):
    """A scheduler whose invariants hold after each event; what departs is told as conversation and turn."""

    def __init__(self, concurrency: int | None = None, **capacities: int) -> None:
        super().__init__(concurrency)
        for model, capacity in capacities.items():
            self.handle(ModelReady(model, capacity))

    def handle(self, event: Event, now_s: float = 0.0) -> list[Action]:
        actions = super().handle(event, now_s)
        self.validate()
        self.last = actions
        return actions

    def send(self, event: Event, now_s: float = 0.0) -> list[tuple[int, str]]:
        """What departs after an event; `last` are all the actions."""
        actions = self.handle(event, now_s)
        return [(action.conversation, action.turn.key) for action in actions if isinstance(action, Depart)]

    def open(self, conversation: int, *turns: Turn, rounds: int = 0, **more: Any) -> list[tuple[int, str]]:
        return self.send(Opened(conversation, turns, rounds, **more))

    def answer(self, conversation: int, turn: Turn, *left: Turn, rounds: int = 0, **more: Any) -> list[tuple[int, str]]:
        return self.send(Answered(conversation, turn, left, rounds, **more))

    def fault(self, conversation: int, turn: Turn, delay_s: float | None, **how: bool) -> list[tuple[int, str]]:
        return self.send(Faulted(conversation, turn, delay_s, **how))


def turn(seat: int, *, round: int = 0, model: str = "m", step: int = 0, attempt: int = 0, after: str = "") -> Turn:
    """A turn of the agent `a` with the number of its seat, which waits for these others."""
    names = frozenset(f"a{letter}" for letter in after)
    return Turn(round=round, agent=f"a{seat}", model=model, place=seat, step=step, attempt=attempt, after=names)
