"""The life of a lane, as a pure state machine: the caller passes the time and performs what follows.

    method          from                                     to
    --------------  ---------------------------------------  ---------------------------------------------------------
    starting        PLANNED, RESTING                         STARTING, with a deadline of `start_s`
    started         STARTING                                 WARMING, with the same deadline
    waking          ASLEEP                                   WARMING, with a deadline of `start_s`
    warmed          WARMING                                  UP
    suspect         UP, WARMING, DRAINING                    SUSPECT
    drain           UP                                       DRAINING; its requests in flight go on
    drained         DRAINING                                 DRAINING and dry, with a deadline of `SLEEP_S`
    slept           DRAINING and dry                         ASLEEP
    drain by a      UP                                       DRAINING, held
    person          STARTING, WARMING, SUSPECT, DRAINING,    DRAINING, held; dry if no request can be in flight
                    ASLEEP
                    PLANNED, RESTING                         DRAINED
    ask_up          DRAINED                                  PLANNED
                    DRAINING and held                        UP, or PLANNED once the process that is being stopped ended
    stopping        any with a process                       the same; it takes no requests until its process has ended
    ended           any with a process                       RESTING; RETIRED when the budget is spent or the same start
                                                             error came twice in a row; DRAINED when held
    retire          any                                      RETIRED; its process, if there is one, is still to be ended

Any other pair raises AssertionError: the caller has a bug.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from mac_runner.fleet.model import LaneState
from mac_runner.spec import RestartConfig

REST_MAX_S: Final = 60.0
"""Rests between starts are 1, 2, 4 ... seconds, and no longer than this."""
SERVED_S: Final = 60.0
"""A lane that was up for so long before it ended rests one second again."""
SLEEP_S: Final = 120.0
"""How long an engine without requests may take to fall asleep."""

_IDLE: Final = (LaneState.PLANNED, LaneState.RESTING)
_GONE: Final = (*_IDLE, LaneState.DRAINED)
_SERVES: Final = (LaneState.UP, LaneState.SUSPECT)


class Lane:
    """One lane: its state, its deadline, and how often it may still be started."""

    def __init__(self, name: str, *, restart: RestartConfig, start_s: float) -> None:
        self.name = name
        self.state = LaneState.PLANNED
        self.fault = ""
        """Why it last ended, is suspect or retired."""
        self.deaths = 0
        """How often its process ended unasked, or had to be ended."""
        self.restarts = 0
        """How often it was started after a death."""
        self.due_at_s: float | None = None
        """When it must have moved on; None where it may take its time."""
        self.is_running = False
        """Whether it has a process."""
        self.is_stopping = False
        """Whether its process is being ended."""
        self.is_held = False
        """Whether a person drained it."""
        self.is_dry = False
        """Whether it is draining and has no request in flight."""
        self.has_served = False
        """Whether it was up at least once."""
        self._restart = restart
        self._start_s = start_s
        self._may_start_at_s = 0.0
        self._up_at_s: float | None = None
        """When this process served first."""
        self._rest_s = 0.0
        self._starts: deque[float] = deque()
        """When it was started after a death, within the budget's time."""
        self._has_died = False
        """Whether the next start is one after a death."""
        self._start_error: str | None = None
        self._is_swapped_out = False
        """Whether it drains because another lane takes its turn."""
        self._ends_free = False
        """Whether a person had it stopped, so that its end is no death."""

    @property
    def is_up(self) -> bool:
        """Whether it takes requests."""
        return self.state is LaneState.UP and not self.is_stopping

    @property
    def may_start_at_s(self) -> float | None:
        """The end of its rest; None while it has a process, is drained by a person or retired."""
        return self._may_start_at_s if self.state in _IDLE and not self.is_running else None

    def may_start(self, now_s: float) -> bool:
        """Whether it has no process, is wanted and has rested."""
        at_s = self.may_start_at_s
        return at_s is not None and at_s <= now_s

    def starting(self, now_s: float) -> None:
        """Its process is being started."""
        assert self.may_start(now_s), f"{self.name} may not start: {self.state}"
        if self._has_died:
            self.restarts += 1
            self._starts.append(now_s)
        self._has_died = False
        self.state, self.is_running, self._up_at_s = LaneState.STARTING, True, None
        self.due_at_s = now_s + self._start_s

    def started(self) -> None:
        """Its engine answers."""
        self._move("started", LaneState.WARMING, LaneState.STARTING)

    def waking(self, now_s: float) -> None:
        """Its engine is being woken."""
        self._move("waking", LaneState.WARMING, LaneState.ASLEEP)
        self.due_at_s = now_s + self._start_s

    def warmed(self, now_s: float) -> None:
        """Its cache holds the common prefix: it may serve."""
        self._move("warmed", LaneState.UP, LaneState.WARMING)
        self.due_at_s = None
        self._start_error = None
        self.has_served = True
        if self._up_at_s is None:
            self._up_at_s = now_s

    def suspect(self, why: str) -> None:
        """It hangs: it gets no new requests, and its process is to be ended."""
        self._move("suspect", LaneState.SUSPECT, LaneState.UP, LaneState.WARMING, LaneState.DRAINING)
        self.fault = why

    def drain(self, *, by_person: bool = False) -> None:
        """Give it no new requests: for a swap, or because a person wants it out of service."""
        if not by_person:
            self._move("drain", LaneState.DRAINING, LaneState.UP)
            self._is_swapped_out = True
            return
        assert self.state is not LaneState.RETIRED, f"{self.name} is retired"
        self.is_held = self._ends_free = True
        if self.state in _GONE:
            self.state = LaneState.DRAINED
        elif self.state is not LaneState.DRAINING:
            self.is_dry = self.state not in _SERVES
            self.state, self.due_at_s = LaneState.DRAINING, None

    def ask_up(self, now_s: float) -> None:
        """A person wants it back."""
        assert self.is_held, f"{self.name} is not drained by a person"
        self.is_held = False
        if self.state is LaneState.DRAINED:
            self.state, self._may_start_at_s = LaneState.PLANNED, now_s
        elif not self.is_stopping and not self.is_dry:
            self._ends_free = False
            if not self._is_swapped_out:
                self.state = LaneState.UP

    def drained(self, now_s: float) -> None:
        """It has no request in flight."""
        self._move("drained", LaneState.DRAINING, LaneState.DRAINING)
        self.is_dry = True
        self.due_at_s = now_s + SLEEP_S

    def slept(self) -> None:
        """It gave its memory back and keeps its process."""
        assert self.is_dry, f"{self.name} sleeps while requests are in flight"
        self._move("slept", LaneState.ASLEEP, LaneState.DRAINING)
        self.is_dry = self._is_swapped_out = False
        self.due_at_s = None

    def stopping(self, why: str) -> None:
        """Its process is being ended, for this reason."""
        assert self.is_running, f"{self.name} has no process to stop"
        self.is_stopping, self.due_at_s = True, None
        self.fault = why

    def ended(self, why: str, now_s: float, *, was_killed: bool = False) -> None:
        """Its process is gone.

        A process that another one killed says nothing about the engine: that is not a start error. A reason that was
        given to `stopping` goes before `why`.
        """
        assert self.is_running, f"{self.name} has no process that could end"
        if self.is_stopping:
            why, was_killed = self.fault, False
        is_free = self._ends_free or self.state is LaneState.RETIRED
        error = None if self._up_at_s is not None or was_killed else _normal(why)
        is_same_error = error is not None and error == self._start_error
        is_settled = self._up_at_s is not None and now_s - self._up_at_s >= SERVED_S
        self.is_running = self.is_stopping = self.is_dry = self._is_swapped_out = self._ends_free = False
        self.due_at_s = self._up_at_s = None
        if is_free:
            self._end_free(now_s)
            return
        self.deaths += 1
        self._has_died, self._start_error = True, error
        self.fault = why
        self._rest_s = 1.0 if is_settled or not self._rest_s else min(REST_MAX_S, 2 * self._rest_s)
        self.state, self._may_start_at_s = LaneState.RESTING, now_s + self._rest_s
        if is_same_error:
            self.retire(f"the same start error twice in a row: {why}")
        elif self._is_budget_spent(now_s):
            per_s = f"{self._restart.per_s:g} s"
            self.retire(f"{self._restart.budget} restarts in {per_s} are spent (fleet.restart); it last ended: {why}")

    def retire(self, why: str) -> None:
        """It will not serve again."""
        self.state, self.fault = LaneState.RETIRED, why
        self.due_at_s = None
        self.is_held = self.is_dry = self._is_swapped_out = False

    def _end_free(self, now_s: float) -> None:
        if self.state is not LaneState.RETIRED:
            self.fault, self._start_error = "", None
            self.state, self._may_start_at_s = LaneState.DRAINED if self.is_held else LaneState.PLANNED, now_s

    def _is_budget_spent(self, now_s: float) -> bool:
        while self._starts and self._starts[0] <= now_s - self._restart.per_s:
            self._starts.popleft()
        return len(self._starts) >= self._restart.budget

    def _move(self, event: str, to: LaneState, *allowed: LaneState) -> None:
        assert self.state in allowed, f"{self.name}: {event} while {self.state}"
        assert self.is_running, f"{self.name}: {event} without a process"
        self.state = to


def _normal(error: str) -> str:
    """An error without what differs between two starts: numbers, ports, addresses, times."""
    return " ".join(re.sub(r"\S*\d\S*", "#", error.lower()).split())
