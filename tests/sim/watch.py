"""Checks a run after each event: derives the pools again, and accounts for every turn that went in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mac_runner.clock import Clock
from mac_runner.scheduler import Accounting, Progress, RequestScheduler, RunLog
from mac_runner.scheduler.testing import (
    Action,
    Answered,
    Broken,
    Depart,
    Event,
    Faulted,
    LiveConversation,
    Opened,
    Settle,
)


class Departure(NamedTuple):
    """A departure, and when its turn was ready."""

    depart: Depart
    ready_at_s: float


@dataclass(slots=True)
class Sums:
    """What went in and what came out."""

    events: int = 0
    departed: int = 0
    landed: int = 0
    opened: int = 0
    settled: int = 0


class Watch(Progress):
    """A Progress that sees every event of the scheduler that it is attached to."""

    def __init__(self) -> None:
        super().__init__(planned=0)
        self.sums = Sums()
        self.departures: list[Departure] = []
        self.suspects: dict[int, frozenset[str]] = {}
        self.fresh_at_s: dict[int, float] = {}

    def attach(
        self,
        scheduler: RequestScheduler,
        accounting: Accounting,
        log: RunLog,
        clock: Clock,
        live: dict[int, LiveConversation],
        silent_since_s: Callable[[str], float | None] = lambda _engine: None,
    ) -> None:
        handle = scheduler.handle

        def watched(event: Event, now_s: float = 0.0) -> list[Action]:
            actions = handle(event, now_s)
            self._look(scheduler, event, actions, now_s)
            return actions

        scheduler.handle = watched  # type: ignore[method-assign]
        super().attach(scheduler, accounting, log, clock, live, silent_since_s)

    def check_fairness(self) -> None:
        """No turn jumps the queue: while a turn waits for its model, no conversation opened later has one sent.

        Looked at are first askings: a correction or another sending goes before them by right, a conversation that is
        further does (as one may be that was resumed in the middle of a round), and a suspect is behind them.
        """
        firsts = [
            one
            for one in self.departures
            if one.depart.sending == 1
            and not one.depart.turn.is_followup
            and one.depart.turn.key not in self.suspects[one.depart.conversation]
        ]
        for place, late in enumerate(firsts):
            opened_at_s = self.fresh_at_s.get(late.depart.conversation, 0.0)
            for waiting in firsts[place + 1 :]:
                is_passed = (
                    waiting.ready_at_s + 1e-6 < opened_at_s
                    and waiting.depart.turn.model == late.depart.turn.model
                    and waiting.depart.turn.round >= late.depart.turn.round
                )
                assert not is_passed, f"{late.depart} went before {waiting.depart}, ready since {waiting.ready_at_s}"

    def _look(self, scheduler: RequestScheduler, event: Event, actions: list[Action], now_s: float) -> None:
        scheduler.validate()
        sums = self.sums
        sums.events += 1
        if isinstance(event, Opened):
            sums.opened += 1
            self.suspects[event.conversation] = event.suspects
            if not event.rounds_completed:
                self.fresh_at_s[event.conversation] = now_s
        elif isinstance(event, Answered | Faulted | Broken):
            sums.landed += 1
        for action in actions:
            if isinstance(action, Depart):
                sums.departed += 1
                self.departures.append(Departure(action, now_s - action.waited_s))
            elif isinstance(action, Settle):
                sums.settled += 1
        assert sums.departed - sums.landed == scheduler.in_flight, f"{sums}, {scheduler.in_flight} in flight"
        assert sums.opened - sums.settled == scheduler.open_conversations, f"{sums}: a conversation was lost or doubled"
