"""Lanes: their words, the life of one, and which lanes of a place are awake. Pure: the caller passes the time.

A *lane* is a model on a place: one server process. A place has as many *resident* lanes as `max_agents_per_gpu` allows;
where more are placed on it they take turns (`Residency`), and the others sleep.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from mac_runner.backends.fleet.settings import ModelLanes
from mac_runner.fleet.gpus import Place
from mac_runner.spec import RestartConfig, SwapConfig
from mac_runner.types import JsonObject

REST_MAX_S: Final = 60.0
"""Rests between starts are 1, 2, 4 ... seconds, and no longer than this."""
SERVED_S: Final = 60.0
"""A lane that was up for so long before it ended rests one second again."""
SLEEP_S: Final = 120.0
"""How long an engine without requests may take to fall asleep."""
BUSY_SHARE: Final = 0.25
"""A lane with an empty queue gives its seat away when less than this share of its slots is busy."""

OnEvent: TypeAlias = Callable[[str, JsonObject], None]
"""Takes an event: its name, such as `EVENT_LANE_UP`, and its fields."""


def no_events(_name: str, _fields: JsonObject) -> None:
    """For those who want no events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """One engine to run."""

    name: str
    """The model's name in the file and the number of the place: `townsfolk@0`."""
    model: str
    """The entry of `model_definitions`."""
    checkpoint: str
    """`fleet_config.model`."""
    place: Place
    memory_share: float
    """The share of the place's memory that it may take, while it is resident."""
    port: int
    slots: int
    takes_turns: bool = False
    """Whether more lanes are on its place than may be resident, so that it sleeps while others serve."""

    @property
    def url(self) -> str:
        """The base URL for requests."""
        return f"http://127.0.0.1:{self.port}/v1"


class LaneState(StrEnum):
    """Where a lane is in its life."""

    PLANNED = "planned"
    STARTING = "starting"
    WARMING = "warming"
    UP = "up"
    SUSPECT = "suspect"
    DRAINING = "draining"
    ASLEEP = "asleep"
    RESTING = "resting"
    """Its process is gone; it rests before the next start."""
    DRAINED = "drained"
    """A person took it out of service. Its process is gone, and it starts only when a person asks for it."""
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """A lane as people see it."""

    name: str
    model: str
    place: str
    state: LaneState
    slots: int
    in_flight: int = 0
    tokens_per_s: float | None = None
    prefix_hits: float | None = None
    """The share of prompt tokens that came from the cache; None before the first reply."""
    deaths: int = 0
    restarts: int = 0
    fault: str = ""
    """Why it last ended or did not start."""
    pid: int | None = None
    port: int | None = None
    log: str = ""


class Fleet(Protocol):
    """Engines that are there: those of this process, or those that another one holds."""

    def model(self, name: str) -> ModelLanes:
        """Those of one entry of `model_definitions`."""

    def status(self) -> tuple[LaneStatus, ...]:
        """All lanes now, for people."""


_IDLE: Final = (LaneState.PLANNED, LaneState.RESTING)
_GONE: Final = (*_IDLE, LaneState.DRAINED)
_SERVES: Final = (LaneState.UP, LaneState.SUSPECT)


class Lane:
    """The life of one lane: its state, its deadline, and how often it may still be started.

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
        assert self.may_start(now_s), f"{self.name} may not start: {self.state}"
        if self._has_died:
            self.restarts += 1
            self._starts.append(now_s)
        self._has_died = False
        self.state, self.is_running, self._up_at_s = LaneState.STARTING, True, None
        self.due_at_s = now_s + self._start_s

    def started(self) -> None:
        self._move("started", LaneState.WARMING, LaneState.STARTING)

    def waking(self, now_s: float) -> None:
        self._move("waking", LaneState.WARMING, LaneState.ASLEEP)
        self.due_at_s = now_s + self._start_s

    def warmed(self, now_s: float) -> None:
        self._move("warmed", LaneState.UP, LaneState.WARMING)
        self.due_at_s = None
        self._start_error = None
        self.has_served = True
        if self._up_at_s is None:
            self._up_at_s = now_s

    def suspect(self, why: str) -> None:
        self._move("suspect", LaneState.SUSPECT, LaneState.UP, LaneState.WARMING, LaneState.DRAINING)
        self.fault = why

    def drain(self, *, by_person: bool = False) -> None:
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
        assert self.is_held, f"{self.name} is not drained by a person"
        self.is_held = False
        if self.state is LaneState.DRAINED:
            self.state, self._may_start_at_s = LaneState.PLANNED, now_s
        elif not self.is_stopping and not self.is_dry:
            self._ends_free = False
            if not self._is_swapped_out:
                self.state = LaneState.UP

    def drained(self, now_s: float) -> None:
        self._move("drained", LaneState.DRAINING, LaneState.DRAINING)
        self.is_dry = True
        self.due_at_s = now_s + SLEEP_S

    def slept(self) -> None:
        assert self.is_dry, f"{self.name} sleeps while requests are in flight"
        self._move("slept", LaneState.ASLEEP, LaneState.DRAINING)
        self.is_dry = self._is_swapped_out = False
        self.due_at_s = None

    def stopping(self, why: str) -> None:
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


class Phase(StrEnum):
    """Where a lane is between asleep and resident."""

    ABSENT = "absent"
    OUT = "out"
    COMING = "coming"
    IN = "in"
    LEAVING = "leaving"


_SEATED: Final = (Phase.COMING, Phase.IN, Phase.LEAVING)


@dataclass(frozen=True, slots=True)
class Swap:
    """`out` is to be drained and put to sleep, so that `in_` can take its seat."""

    out: str
    in_: str


@dataclass(slots=True)
class Decision:
    """What is to be done now."""

    grants: list[tuple[int, str]] = field(default_factory=list)
    """Tickets, and the lane that each may use."""
    swaps: list[Swap] = field(default_factory=list)
    enters: list[str] = field(default_factory=list)
    """Lanes that have a seat now: start or wake them."""


@dataclass(slots=True, eq=False)
class _Seat:
    """A lane on its way into and out of the GPU's memory."""

    spec: LaneSpec
    phase: Phase = Phase.ABSENT
    since_s: float = 0.0
    """When it came in."""
    wanted_at_s: float | None = None
    """Since when it is to come in although no request asks for it."""
    in_flight: int = 0
    promised: str | None = None
    """The lane that its seat goes to."""

    @property
    def free(self) -> int:
        """Requests that it takes now."""
        return max(0, self.spec.slots - self.in_flight) if self.phase is Phase.IN else 0


@dataclass(slots=True, eq=False)
class _Ask:
    number: int
    """Its ticket: asks are numbered in the order in which they came."""
    model: str
    asked_at_s: float
    lane: str | None = None


@dataclass(slots=True, eq=False)
class _Model:
    lanes: list[_Seat] = field(default_factory=list)
    queue: deque[_Ask] = field(default_factory=deque)


class Residency:
    """Which lanes of a place are awake, and which requests may be sent now.

    The caller performs what `decide` returns, and reports what came of it.

    phase      meaning                                                    next
    ---------  ---------------------------------------------------------  ---------------------------------------------
    ABSENT     cannot come in: rests, is drained by a person              OUT by `available`
    OUT        asleep, or may be started                                  COMING when it has a seat; ABSENT by `gone`
    COMING     has a seat, is being started or woken                      IN by `up`; LEAVING by `down`
    IN         serves: requests are granted on it                         LEAVING when another lane takes its seat
    LEAVING    gets no requests, keeps its seat until its memory is back  ABSENT by `gone`

    `fifo`: one queue of all models, served strictly from its front (section 5.1 of the specification): the first
    request waits until a lane of its model is in and has a free slot, and all others wait behind it. Its lane takes the
    seat of one without requests; lanes for the next requests may come in meanwhile. A request whose model has no lane
    that could come in is passed over.

    `batch`: a queue for each model. A lane keeps its seat until its queue is dry and less than a quarter of its slots
    are busy, or until `residency_s` has passed while others wait. Its seat goes to the lane whose oldest request that
    nothing else will serve has waited longest, so a wait is bounded by `residency_s`, the longest reply and the time of
    a swap, times the models that share the place.
    """

    def __init__(self, swap: SwapConfig, lanes: Iterable[LaneSpec], resident_max: int) -> None:
        self._swap = swap
        self._resident_max = resident_max
        self._seats = {lane.name: _Seat(lane) for lane in lanes}
        self._models: dict[str, _Model] = {}
        self._places: dict[int, list[_Seat]] = {}
        for seat in self._seats.values():
            self._models.setdefault(seat.spec.model, _Model()).lanes.append(seat)
            self._places.setdefault(seat.spec.place.number, []).append(seat)
        crowded = [seats for seats in self._places.values() if len(seats) > resident_max]
        self._swapped = frozenset(seat.spec.model for seats in crowded for seat in seats)
        self._asks: dict[int, _Ask] = {}
        """In the order in which they came."""
        self._last_number = 0
        self._decision = Decision()
        """What has been decided since `decide` was called."""

    def is_swapped(self, model: str) -> bool:
        """Whether a lane of `model` shares its place with more lanes than may be resident."""
        return model in self._swapped

    def phase(self, lane: str) -> Phase:
        return self._seats[lane].phase

    def in_flight(self, lane: str) -> int:
        """Requests that were granted on it and have not left."""
        return self._seats[lane].in_flight

    def waiting_for(self, model: str) -> tuple[int, ...]:
        """The tickets of a model that wait, in the order in which they asked."""
        return tuple(ask.number for ask in self._models[model].queue)

    def ask(self, model: str, now_s: float) -> int:
        """Queue a request; returns its ticket."""
        self._last_number += 1
        ask = _Ask(self._last_number, model, now_s)
        self._asks[ask.number] = ask
        self._models[model].queue.append(ask)
        return ask.number

    def left(self, ticket: int) -> None:
        """A request was answered, failed, or gave up waiting."""
        ask = self._asks.pop(ticket)
        if ask.lane is None:
            self._models[ask.model].queue.remove(ask)
        else:
            self._seats[ask.lane].in_flight -= 1

    def available(self, lane: str, now_s: float, *, is_wanted: bool) -> None:
        """A lane may come in. One that `is_wanted` comes in even if no request asks for it."""
        seat = self._seats[lane]
        assert seat.phase is Phase.ABSENT, f"{lane} is {seat.phase}"
        seat.phase = Phase.OUT
        seat.wanted_at_s = now_s if is_wanted else None

    def up(self, lane: str, now_s: float) -> None:
        seat = self._seats[lane]
        assert seat.phase in (Phase.COMING, Phase.LEAVING), f"{lane} is {seat.phase}"
        seat.phase, seat.since_s, seat.promised = Phase.IN, now_s, None

    def down(self, lane: str) -> None:
        """A lane takes no requests and cannot come in; the memory that it holds is not back yet."""
        seat = self._seats[lane]
        seat.phase = Phase.LEAVING if seat.phase in _SEATED else Phase.ABSENT

    def gone(self, lane: str) -> None:
        """A lane holds no memory, and cannot come in until it is available again."""
        seat = self._seats[lane]
        seat.phase, seat.wanted_at_s = Phase.ABSENT, None

    def due_at_s(self, now_s: float) -> float | None:
        """When `decide` may have something new to say although nothing happened."""
        if self._swap.policy == "fifo" or not any(seat.phase is Phase.OUT for seat in self._seats.values()):
            return None
        ends = (seat.since_s + self._swap.residency_s for seat in self._seats.values() if seat.phase is Phase.IN)
        return min((end_s for end_s in ends if end_s > now_s), default=None)

    def decide(self, now_s: float) -> Decision:
        """Fill free slots and free seats, and choose who gives its seat away."""
        self._decision = Decision()
        self._keep_promises()
        if self._swap.policy == "fifo":
            self._seat_wanted()
            self._serve_in_order()
        else:
            self._grant_each()
            self._trade_seats(now_s)
        return self._decision

    def _unserved(self) -> list[_Ask]:
        return [ask for ask in self._asks.values() if ask.lane is None]

    # Seats

    def _free_seats(self, place: int) -> int:
        return self._resident_max - sum(seat.phase in _SEATED for seat in self._places[place])

    def _enter(self, seat: _Seat) -> None:
        seat.phase, seat.wanted_at_s = Phase.COMING, None
        self._decision.enters.append(seat.spec.name)

    def _keep_promises(self) -> None:
        """Seats that were given away go to the lanes that they were promised to."""
        for seat in self._seats.values():
            if seat.phase not in _SEATED and seat.promised is not None:
                heir, seat.promised = self._seats[seat.promised], None
                if heir.phase is Phase.OUT and self._free_seats(heir.spec.place.number) > 0:
                    self._enter(heir)

    def _seat_wanted(self) -> None:
        """Lanes that are to come in anyway take the seats that are free."""
        for place in self._places:
            wanted = [seat for seat in self._places[place] if self._is_wanted(seat)]
            wanted.sort(key=lambda seat: seat.wanted_at_s or 0.0)
            for seat in wanted[: max(0, self._free_seats(place))]:
                self._enter(seat)

    def _is_wanted(self, seat: _Seat) -> bool:
        return seat.phase is Phase.OUT and seat.wanted_at_s is not None and not self._is_promised(seat)

    def _is_promised(self, seat: _Seat) -> bool:
        return any(other.promised == seat.spec.name for other in self._places[seat.spec.place.number])

    def _give_away(self, seat: _Seat, heir: _Seat) -> None:
        seat.phase, seat.promised = Phase.LEAVING, heir.spec.name
        self._decision.swaps.append(Swap(seat.spec.name, heir.spec.name))

    def _grant(self, ask: _Ask, seat: _Seat) -> None:
        ask.lane = seat.spec.name
        seat.in_flight += 1
        self._models[ask.model].queue.remove(ask)
        self._decision.grants.append((ask.number, seat.spec.name))

    # fifo

    def _serve_in_order(self) -> None:
        """Grant from the front of the queue until a request has to wait; then seat lanes for those that come next."""
        kept: set[str] = set()
        """Models that requests further to the front wait for: their lanes keep their seats."""
        is_blocked = False
        for ask in self._unserved():
            lanes = self._models[ask.model].lanes
            if not is_blocked and (best := max(lanes, key=lambda seat: seat.free)).free:
                self._grant(ask, best)
            elif any(self._will_serve(seat) for seat in lanes):
                is_blocked = True
                kept.add(ask.model)
            elif out := [seat for seat in lanes if seat.phase is Phase.OUT]:
                is_blocked = True
                kept.add(ask.model)
                if not self._bring_in(out, kept):
                    break
        if not self._unserved():
            self._make_room_for_wanted()

    def _bring_in(self, out: list[_Seat], kept: set[str]) -> bool:
        """Seat one of these lanes, if a seat is free or a lane without requests can give one away."""
        for seat in out:
            if self._free_seats(seat.spec.place.number) > 0:
                self._enter(seat)
                return True
        for seat in out:
            if (idle := self._idle(seat.spec.place.number, kept)) is not None:
                self._give_away(idle, seat)
                return True
        return False

    def _will_serve(self, seat: _Seat) -> bool:
        """Whether a lane is in, on its way in, or is put to sleep for another one and can come back at once."""
        is_leaving_in_order = seat.phase is Phase.LEAVING and seat.promised is not None
        return seat.phase in (Phase.IN, Phase.COMING) or self._is_promised(seat) or is_leaving_in_order

    def _idle(self, place: int, kept: Container[str] = ()) -> _Seat | None:
        """The lane that has been in for longest among those without requests that need not be kept."""
        idle = [
            seat
            for seat in self._places[place]
            if seat.phase is Phase.IN and not seat.in_flight and seat.spec.model not in kept
        ]
        return min(idle, key=lambda seat: seat.since_s, default=None)

    def _make_room_for_wanted(self) -> None:
        for place in self._places:
            for seat in self._places[place]:
                if self._is_wanted(seat) and (idle := self._idle(place)) is not None:
                    self._give_away(idle, seat)

    # batch

    def _grant_each(self) -> None:
        for model in self._models.values():
            while model.queue:
                best = max(model.lanes, key=lambda seat: seat.free)
                if not best.free:
                    break
                self._grant(model.queue[0], best)

    def _trade_seats(self, now_s: float) -> None:
        """At each place, free seats and those that may be given away go to the lane that has waited longest."""
        for place, seats in self._places.items():
            while (heir := self._longest_waiting(seats)) is not None:
                if self._free_seats(place) > 0:
                    self._enter(heir)
                elif (seat := self._dispensable(seats, heir, now_s)) is not None:
                    self._give_away(seat, heir)
                else:
                    break

    def _longest_waiting(self, seats: list[_Seat]) -> _Seat | None:
        waits = [(at_s, seat.spec.name) for seat in seats if (at_s := self._waits_since_s(seat)) is not None]
        return self._seats[min(waits)[1]] if waits else None

    def _waits_since_s(self, seat: _Seat) -> float | None:
        """When the oldest request asked that this lane is needed for, or since when it is wanted anyway."""
        if seat.phase is not Phase.OUT or self._is_promised(seat):
            return None
        oldest = self._oldest_s(self._models[seat.spec.model])
        return min((at_s for at_s in (oldest, seat.wanted_at_s) if at_s is not None), default=None)

    def _oldest_s(self, model: _Model) -> float | None:
        """When the oldest request asked that no lane on its way in will serve."""
        coming = sum(seat.spec.slots for seat in model.lanes if seat.phase is Phase.COMING or self._is_promised(seat))
        return model.queue[coming].asked_at_s if coming < len(model.queue) else None

    def _dispensable(self, seats: list[_Seat], heir: _Seat, now_s: float) -> _Seat | None:
        """The lane that gives its seat to `heir`: one that is dry, else one that has been in for long enough.

        A model that has a lane elsewhere gets a second one only for requests that waited longer than those of the lane
        that would have to go.
        """
        since_s = self._waits_since_s(heir)
        assert since_s is not None
        is_served = any(seat.phase in (Phase.COMING, Phase.IN) for seat in self._models[heir.spec.model].lanes)
        able = []
        for seat in seats:
            if seat.phase is not Phase.IN:
                continue
            queue = self._models[seat.spec.model].queue
            is_dry = not queue and seat.in_flight < max(1, BUSY_SHARE * seat.spec.slots)
            has_stayed = now_s - seat.since_s >= self._swap.residency_s
            if is_dry or (has_stayed and (not is_served or not queue or since_s < queue[0].asked_at_s)):
                able.append((not is_dry, seat.in_flight if is_dry else 0, seat.since_s, seat.spec.name))
        return self._seats[min(able)[3]] if able else None
