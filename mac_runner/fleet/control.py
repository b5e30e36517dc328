"""What the supervisor of a fleet does next: events in, actions out, no process, no socket, no clock.

Each method is an event. It returns the actions that follow from it, in order; the shell performs them and answers with
further events (`Do` says with which). It calls `tick` at `next_at_s`. Promises, checked by `validate` after each event:

- one lane of a place is started or woken at a time, and only when the memory of every lane that ended or slept there
  is back;
- a lane takes requests only while it is UP, and a model's capacity is the sum of the slots of its lanes that are UP;
- a lane is put to sleep only after its last request has left;
- a lane is stopped when it is stuck, misses its deadline, keeps its memory asleep or is drained by a person, and for
  no other reason: a slow health page is not an event;
- a lane gets no more restarts than its budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from mac_runner.fleet.lane import SLEEP_S, Lane, LaneSpec, LaneState, Phase, Residency
from mac_runner.spec import FleetConfig

MEMORY_S: Final = 30.0
"""A lane that sleeps for so long and has not given its memory back is ended."""
RECHECK_S: Final = 1.0
"""The pause between two looks at the memory."""


class Do(StrEnum):
    """What is to be done with a lane, each with the events that answer it."""

    START = "start"
    """Start the process, and wait until the engine answers: `ready`, or `ended`."""
    WARM = "warm"
    """Send one short request with the common prefix: `warmed`, or `failed`."""
    STOP = "stop"
    """End the process group, by force after a while: `ended`."""
    SLEEP = "sleep"
    """Ask the engine, whose requests have left, to sleep: `slept`, or `failed`."""
    WAKE = "wake"
    """Ask the engine to wake: `woken`, or `failed`."""
    CHECK_MEMORY = "check memory"
    """Look whether the memory that the lane held is free again: `memory`."""


@dataclass(frozen=True, slots=True)
class Command:
    """Do something with a lane."""

    do: Do
    lane: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Let the request with this ticket go; `left` once it is over."""

    ticket: int
    lane: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Fail the request with this ticket: no lane of its model will serve again."""

    ticket: int
    why: str


@dataclass(frozen=True, slots=True)
class Changed:
    """What is so of a model from now on."""

    model: str
    up: tuple[str, ...]
    """The lanes that take requests."""
    alive: tuple[str, ...]
    """Those that are not retired."""
    lost: str | None
    """Why no lane will serve again; None while one may."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the log of the run: `EVENT_LANE_...`."""

    event: str
    lane: str
    reason: str = ""
    seconds: float | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


Action: TypeAlias = Command | Grant | Refuse | Changed | Note


@dataclass(slots=True, eq=False)
class _Held:
    """A lane and what this module knows beside its state."""

    spec: LaneSpec
    lane: Lane
    is_entering: bool = False
    """Whether it has a seat and is to be started or woken."""
    move: Do | None = None
    """START or WAKE while it is being started or woken: one at a time of its place."""
    owes_since_s: float | None = None
    """Since when its memory is to be back."""
    is_asked: bool = False
    """Whether an answer about its memory is awaited."""
    is_stale: bool = False
    """Whether the awaited answer is about an earlier time."""
    look_at_s: float = 0.0
    """When its memory is looked at again."""
    began_s: float = 0.0
    """When its start, or the swap that brings it in, began; for the log."""
    moved_at_s: float = 0.0
    """When its start or wake was ordered."""
    replaced: str | None = None
    """The lane whose seat it takes."""

    @property
    def place(self) -> int:
        return self.spec.place.number


class Control:
    """The decisions of a fleet's supervisor."""

    def __init__(self, lanes: Iterable[LaneSpec], config: FleetConfig) -> None:
        self._config = config
        self._held = {
            spec.name: _Held(spec, Lane(spec.name, restart=config.restart, start_s=config.probe.start_s))
            for spec in lanes
        }
        self._residency = Residency(config.swap, [held.spec for held in self._held.values()], config.max_agents_per_gpu)
        self._models: dict[str, list[_Held]] = {}
        for held in self._held.values():
            self._models.setdefault(held.spec.model, []).append(held)
        self._shown = {model: self._picture(model) for model in self._models}
        self._refused: set[int] = set()
        self._out: list[Action] = []
        self._is_closed = False

    # What is true now

    def lane(self, name: str) -> Lane:
        return self._held[name].lane

    def up(self, model: str) -> tuple[LaneSpec, ...]:
        return tuple(held.spec for held in self._models[model] if held.lane.is_up)

    def is_swapped(self, model: str) -> bool:
        """Whether requests of a model wait for their turn."""
        return self._residency.is_swapped(model)

    def has_served(self, model: str) -> bool:
        """Whether a lane of a model was up at least once; where lanes are swapped it may sleep now."""
        return any(held.lane.has_served for held in self._models[model])

    def lost(self, model: str) -> str | None:
        """Why no lane of a model will serve again; None while one may."""
        if self._alive(model):
            return None
        return "; ".join(f"{held.spec.name}: {held.lane.fault}" for held in self._models[model])

    def next_at_s(self, now_s: float) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        times = [self._residency.due_at_s(now_s)]
        for held in self._held.values():
            is_resting = self._residency.phase(held.spec.name) is Phase.ABSENT and held.owes_since_s is None
            times.append(held.lane.due_at_s)
            times.append(held.lane.may_start_at_s if is_resting else None)
            times.append(held.look_at_s if held.owes_since_s is not None and not held.is_asked else None)
        return min((at_s for at_s in times if at_s is not None), default=None)

    # Events

    def begin(self, now_s: float) -> tuple[Action, ...]:
        """Start all lanes; on a place where they take turns, one after the other."""
        return self._settle(now_s)

    def tick(self, now_s: float) -> tuple[Action, ...]:
        for held in self._held.values():
            if held.lane.due_at_s is not None and held.lane.due_at_s <= now_s:
                self._stop(held, self._overdue(held.lane))
        return self._settle(now_s)

    def ready(self, lane: str, now_s: float) -> tuple[Action, ...]:
        """The engine of a lane answers. Too late for a lane that is being stopped."""
        held = self._held[lane]
        if held.lane.state is LaneState.STARTING and not held.lane.is_stopping:
            held.lane.started()
            self._out.append(Command(Do.WARM, lane))
        return self._settle(now_s)

    def woken(self, lane: str, now_s: float) -> tuple[Action, ...]:
        held = self._held[lane]
        if held.lane.state is LaneState.WARMING and not held.lane.is_stopping:
            self._out.append(Command(Do.WARM, lane))
        return self._settle(now_s)

    def warmed(self, lane: str, now_s: float) -> tuple[Action, ...]:
        held = self._held[lane]
        if held.lane.state is LaneState.WARMING and not held.lane.is_stopping:
            held.lane.warmed(now_s)
            self._residency.up(lane, now_s)
            event = "EVENT_LANE_UP" if held.move is Do.START else "EVENT_LANE_SWAP"
            fields = {} if held.replaced is None else {"replaced": held.replaced}
            self._note(event, held, "", now_s - held.began_s, **fields)
            held.move = held.replaced = None
        return self._settle(now_s)

    def slept(self, lane: str, now_s: float) -> tuple[Action, ...]:
        """A lane is asleep. Whether its memory is back is another question."""
        held = self._held[lane]
        if held.lane.is_dry and not held.lane.is_stopping and not held.lane.is_held:
            held.lane.slept()
            self._owe(held, now_s)
        return self._settle(now_s)

    def failed(self, lane: str, why: str, now_s: float) -> tuple[Action, ...]:
        """A lane could not be put to sleep, woken or warmed: it is ended and started again."""
        held = self._held[lane]
        if held.lane.is_running:
            self._stop(held, why)
        return self._settle(now_s)

    def stuck(self, lane: str, why: str, now_s: float) -> tuple[Action, ...]:
        """A lane with requests gives no token, not even to a canary."""
        held = self._held[lane]
        if held.lane.state in (LaneState.UP, LaneState.DRAINING) and not held.lane.is_stopping:
            held.lane.suspect(why)
            self._note("EVENT_LANE_SUSPECT", held, why)
            self._stop(held, why)
        return self._settle(now_s)

    def ended(self, lane: str, why: str, now_s: float, *, was_killed: bool = False) -> tuple[Action, ...]:
        """The process of a lane is gone, or could not be started."""
        held = self._held[lane]
        if not held.lane.is_running:
            return self._settle(now_s)
        deaths = held.lane.deaths
        reason = held.lane.fault if held.lane.is_stopping else why
        held.lane.ended(why, now_s, was_killed=was_killed)
        held.is_entering = False
        held.move = held.replaced = None
        self._residency.down(lane)
        self._owe(held, now_s)
        if held.lane.deaths > deaths:
            self._note("EVENT_LANE_DEAD", held, reason)
        if held.lane.state is LaneState.RETIRED and not self._is_closed:
            self._note("EVENT_LANE_RETIRED", held, held.lane.fault)
        return self._settle(now_s)

    def memory(self, lane: str, is_back: bool, now_s: float) -> tuple[Action, ...]:
        held = self._held[lane]
        is_stale, held.is_asked, held.is_stale = held.is_stale, False, False
        if is_stale or held.owes_since_s is None:
            return self._settle(now_s)
        waited_s = now_s - held.owes_since_s
        if is_back:
            self._release(held)
        else:
            held.look_at_s = now_s + RECHECK_S
            if held.lane.state is LaneState.ASLEEP and waited_s >= MEMORY_S:
                held.owes_since_s = None
                self._stop(held, f"it kept its memory for {MEMORY_S:g} s after it fell asleep")
            elif not held.lane.is_running and waited_s >= self._config.probe.start_s:
                self._give_up_memory(held)
        return self._settle(now_s)

    def drain(self, lane: str, now_s: float) -> tuple[Action, ...]:
        """A person takes a lane out of service.

        Where nothing is swapped the shell knows what is in flight, and reports `drained` when the last request left.
        """
        held = self._held[lane]
        if held.lane.state is LaneState.RETIRED or held.lane.is_held:
            return ()
        held.lane.drain(by_person=True)
        self._note("EVENT_LANE_DRAIN", held, "a person drains it")
        if held.is_entering:
            held.is_entering, held.replaced = False, None
        if held.lane.is_running:
            self._residency.down(lane)
            if held.lane.is_dry:
                self._stop(held, "a person drained it")
        else:
            self._residency.gone(lane)
        return self._settle(now_s)

    def ask_up(self, lane: str, now_s: float) -> tuple[Action, ...]:
        held = self._held[lane]
        if held.lane.is_held:
            held.lane.ask_up(now_s)
            if held.lane.is_up:
                self._residency.up(lane, now_s)
        return self._settle(now_s)

    def drained(self, lane: str, now_s: float) -> tuple[Action, ...]:
        held = self._held[lane]
        if held.lane.state is LaneState.DRAINING and held.lane.is_held and not held.lane.is_stopping:
            held.lane.drained(now_s)
            self._stop(held, "a person drained it")
        return self._settle(now_s)

    def ask(self, model: str, now_s: float) -> tuple[int, tuple[Action, ...]]:
        """A request of a swapped model waits for its turn; returns its ticket."""
        ticket = self._residency.ask(model, now_s)
        return ticket, self._settle(now_s)

    def left(self, ticket: int, now_s: float) -> tuple[Action, ...]:
        """A request that asked is over: answered, failed, refused or no longer wanted."""
        self._residency.left(ticket)
        self._refused.discard(ticket)
        return self._settle(now_s)

    def close(self, now_s: float) -> tuple[Action, ...]:
        """End all processes, at once and for good."""
        self._is_closed = True
        for held in self._held.values():
            held.lane.retire("the fleet is closed")
            if held.lane.is_running and not held.lane.is_stopping:
                self._stop(held, "the fleet is closed")
        return self._settle(now_s)

    # What follows

    def _settle(self, now_s: float) -> tuple[Action, ...]:
        if not self._is_closed:
            for held in self._held.values():
                self._offer(held, now_s)
            self._decide(now_s)
            for held in self._held.values():
                self._put_to_sleep(held, now_s)
                self._look_at_memory(held, now_s)
            for held in self._held.values():
                self._bring_in(held, now_s)
        self._tell_changes()
        out, self._out = tuple(self._out), []
        self.validate()
        return out

    def _offer(self, held: _Held, now_s: float) -> None:
        """Let a lane have a seat again once it may be started."""
        if self._residency.phase(held.spec.name) is Phase.ABSENT and held.owes_since_s is None:
            if held.lane.may_start(now_s):
                self._residency.available(held.spec.name, now_s, is_wanted=True)
            elif held.lane.state is LaneState.ASLEEP and not held.lane.is_stopping:
                self._residency.available(held.spec.name, now_s, is_wanted=False)

    def _decide(self, now_s: float) -> None:
        decision = self._residency.decide(now_s)
        for ticket, lane in decision.grants:
            self._out.append(Grant(ticket, lane))
        for swap in decision.swaps:
            self._held[swap.out].lane.drain()
            self._held[swap.in_].replaced = swap.out
            self._held[swap.in_].began_s = now_s
            self._note("EVENT_LANE_DRAIN", self._held[swap.out], f"{swap.in_} takes its turn", next=swap.in_)
        for lane in decision.enters:
            self._held[lane].is_entering = True

    def _put_to_sleep(self, held: _Held, now_s: float) -> None:
        lane = held.lane
        if lane.state is not LaneState.DRAINING or lane.is_dry or lane.is_stopping:
            return
        if self._residency.in_flight(lane.name) or (lane.is_held and not self.is_swapped(held.spec.model)):
            return
        lane.drained(now_s)
        if lane.is_held:
            self._stop(held, "a person drained it")
        else:
            self._out.append(Command(Do.SLEEP, lane.name))

    def _look_at_memory(self, held: _Held, now_s: float) -> None:
        if held.owes_since_s is not None and not held.is_asked and held.look_at_s <= now_s:
            held.is_asked = True
            self._out.append(Command(Do.CHECK_MEMORY, held.spec.name))

    def _bring_in(self, held: _Held, now_s: float) -> None:
        """Start or wake a lane that has a seat, if its place is quiet and has its memory back."""
        if not held.is_entering or self._is_place_busy(held.place):
            return
        held.is_entering, held.moved_at_s = False, now_s
        if held.replaced is None:
            held.began_s = now_s
        if held.lane.state is LaneState.ASLEEP:
            held.lane.waking(now_s)
            held.move = Do.WAKE
        else:
            restarts = held.lane.restarts
            held.lane.starting(now_s)
            held.move = Do.START
            is_restart = held.lane.restarts > restarts
            self._note("EVENT_LANE_RESTART" if is_restart else "EVENT_LANE_START", held, held.lane.fault)
        self._out.append(Command(held.move, held.spec.name))

    def _is_place_busy(self, place: int) -> bool:
        return any(
            held.move is not None or held.owes_since_s is not None
            for held in self._held.values()
            if held.place == place
        )

    def _stop(self, held: _Held, why: str) -> None:
        if held.lane.is_stopping:
            return
        held.lane.stopping(why)
        self._residency.down(held.spec.name)
        self._out.append(Command(Do.STOP, held.spec.name))

    def _owe(self, held: _Held, now_s: float) -> None:
        held.owes_since_s, held.look_at_s = now_s, now_s
        held.is_stale = held.is_asked

    def _release(self, held: _Held) -> None:
        held.owes_since_s = None
        self._residency.gone(held.spec.name)

    def _give_up_memory(self, held: _Held) -> None:
        if held.lane.state is not LaneState.RETIRED:
            waited = f"{self._config.probe.start_s:g} s"
            held.lane.retire(f"the memory of {held.spec.place.label} did not come back in {waited} after it ended")
            self._note("EVENT_LANE_RETIRED", held, held.lane.fault)
        self._release(held)

    def _overdue(self, lane: Lane) -> str:
        if lane.state is LaneState.DRAINING:
            return f"it did not fall asleep in {SLEEP_S:g} s"
        verb = "start" if lane.state is LaneState.STARTING else "become ready"
        return f"it did not {verb} in {self._config.probe.start_s:g} s (fleet.probe.start_s)"

    def _tell_changes(self) -> None:
        for model, before in self._shown.items():
            now = self._picture(model)
            if now != before:
                self._shown[model] = now
                self._out.append(now)
            if (why := now.lost) is not None:
                refused = [ticket for ticket in self._residency.waiting_for(model) if ticket not in self._refused]
                self._refused.update(refused)
                self._out += [Refuse(ticket, why) for ticket in refused]

    def _picture(self, model: str) -> Changed:
        up, alive = self.up(model), self._alive(model)
        return Changed(model, tuple(lane.name for lane in up), tuple(one.spec.name for one in alive), self.lost(model))

    def _alive(self, model: str) -> list[_Held]:
        return [held for held in self._models[model] if held.lane.state is not LaneState.RETIRED]

    def _note(self, event: str, held: _Held, reason: str, seconds: float | None = None, **fields: str) -> None:
        self._out.append(Note(event, held.spec.name, reason, seconds, fields))

    def validate(self) -> None:
        """Raise AssertionError where a promise of this module is broken."""
        moving: dict[int, str] = {}
        for name, held in self._held.items():
            lane, phase = held.lane, self._residency.phase(name)
            if held.move is not None:
                assert held.place not in moving, f"{name} and {moving.get(held.place)} start on one place"
                moving[held.place] = name
                assert lane.is_running, f"{name} is being started and has no process"
            assert not lane.is_up or lane.is_running, f"{name} is up without a process"
            if not self._is_closed:
                assert lane.is_up == (phase is Phase.IN), f"{name} is {lane.state}, and {phase}"
            assert phase is not Phase.COMING or held.is_entering or held.move, f"{name} has a seat and does not start"
            assert held.move is None or all(
                other.owes_since_s is None or other.owes_since_s >= held.moved_at_s
                for other in self._held.values()
                if other.place == held.place
            ), f"{name} starts before the memory of its place is back"
