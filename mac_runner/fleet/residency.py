"""Which lanes of a place are awake, where more lanes are placed on it than may be resident.

Pure: the caller passes the time, performs what `decide` returns, and reports what came of it.

    phase      meaning                                                    next
    ---------  ---------------------------------------------------------  ---------------------------------------------
    ABSENT     cannot come in: rests, is drained by a person              OUT by `available`
    OUT        asleep, or may be started                                  COMING when it has a seat; ABSENT by `gone`
    COMING     has a seat, is being started or woken                      IN by `up`; LEAVING by `down`
    IN         serves: requests are granted on it                         LEAVING when another lane takes its seat
    LEAVING    gets no requests, keeps its seat until its memory is back  ABSENT by `gone`

`fifo`: one queue of all models, served strictly from its front: the first request waits until a lane of its model is
in and has a free slot, and all others wait behind it. Its lane takes the seat of one without requests; lanes for the
next requests may come in meanwhile. A request whose model has no lane that could come in is passed over. This is the
queue of the specification's section 5.1.

`batch`: a queue for each model. A lane keeps its seat until its queue is dry and less than a quarter of its slots are
busy, or until `residency_s` has passed while others wait. Its seat goes to the lane whose oldest request that nothing
else will serve has waited longest, so a wait is bounded by `residency_s`, the longest reply and the time of a swap,
times the models that share the place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mac_runner.fleet.model import LaneSpec
from mac_runner.spec import SwapConfig

BUSY_SHARE: Final = 0.25
"""A lane with an empty queue gives its seat away when less than this share of its slots is busy."""


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

    place: int
    out: str
    in_: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now."""

    grants: tuple[tuple[int, str], ...] = ()
    """Tickets, and the lane that each may use."""
    swaps: tuple[Swap, ...] = ()
    enters: tuple[str, ...] = ()
    """Lanes that have a seat now: start or wake them."""


@dataclass(slots=True, eq=False)
class _Seat:
    """A lane as this module sees it."""

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
    agent: str
    model: str
    asked_at_s: float
    lane: str | None = None


@dataclass(slots=True, eq=False)
class _Model:
    lanes: list[_Seat] = field(default_factory=list)
    queue: deque[_Ask] = field(default_factory=deque)


class Residency:
    """Who may use the seats of each place, and which requests may be sent now."""

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
        self._waiting: dict[int, _Ask] = {}
        self._last_number = 0

    def is_swapped(self, model: str) -> bool:
        """Whether a lane of `model` shares its place with more lanes than may be resident."""
        return model in self._swapped

    def phase(self, lane: str) -> Phase:
        """Where a lane is."""
        return self._seats[lane].phase

    def in_flight(self, lane: str) -> int:
        """Requests that were granted on it and have not left."""
        return self._seats[lane].in_flight

    def waiting(self) -> tuple[str, ...]:
        """The agents that wait, in the order in which they asked."""
        return tuple(ask.agent for ask in self._waiting.values())

    def waiting_for(self, model: str) -> tuple[int, ...]:
        """The tickets of a model that wait, in the order in which they asked."""
        return tuple(ask.number for ask in self._models[model].queue)

    def active(self) -> tuple[str, ...]:
        """The agents whose requests were granted, in the order in which they asked."""
        return tuple(ask.agent for ask in self._asks.values() if ask.lane is not None)

    def ask(self, agent: str, model: str, now_s: float) -> int:
        """Queue a request; returns its ticket."""
        self._last_number += 1
        ask = _Ask(self._last_number, agent, model, now_s)
        self._asks[ask.number] = self._waiting[ask.number] = ask
        self._models[model].queue.append(ask)
        return ask.number

    def left(self, ticket: int) -> None:
        """A request was answered, failed, or gave up waiting."""
        ask = self._asks.pop(ticket)
        if ask.lane is None:
            del self._waiting[ticket]
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
        """A lane that was coming serves."""
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
        enters = list(self._keep_promises())
        if self._swap.policy == "fifo":
            enters += self._seat_wanted()
            grants, swaps, more = self._serve_in_order()
        else:
            grants = list(self._grant_each())
            swaps, more = self._trade_seats(now_s)
        return Decision(tuple(grants), tuple(swaps), (*enters, *more))

    # Seats

    def _free_seats(self, place: int) -> int:
        return self._resident_max - sum(seat.phase in _SEATED for seat in self._places[place])

    def _enter(self, seat: _Seat) -> str:
        seat.phase, seat.wanted_at_s = Phase.COMING, None
        return seat.spec.name

    def _keep_promises(self) -> Iterator[str]:
        """Seats that were given away go to the lanes that they were promised to."""
        for seat in self._seats.values():
            if seat.phase not in _SEATED and seat.promised is not None:
                heir, seat.promised = self._seats[seat.promised], None
                if heir.phase is Phase.OUT and self._free_seats(heir.spec.place.number) > 0:
                    yield self._enter(heir)

    def _seat_wanted(self) -> Iterator[str]:
        """Lanes that are to come in anyway take the seats that are free."""
        for place in self._places:
            wanted = [seat for seat in self._places[place] if self._is_wanted(seat)]
            wanted.sort(key=lambda seat: seat.wanted_at_s or 0.0)
            for seat in wanted[: max(0, self._free_seats(place))]:
                yield self._enter(seat)

    def _is_wanted(self, seat: _Seat) -> bool:
        return seat.phase is Phase.OUT and seat.wanted_at_s is not None and not self._is_promised(seat)

    def _is_promised(self, seat: _Seat) -> bool:
        return any(other.promised == seat.spec.name for other in self._places[seat.spec.place.number])

    def _give_away(self, seat: _Seat, heir: _Seat) -> Swap:
        seat.phase, seat.promised = Phase.LEAVING, heir.spec.name
        return Swap(seat.spec.place.number, seat.spec.name, heir.spec.name)

    def _grant(self, ask: _Ask, seat: _Seat) -> tuple[int, str]:
        ask.lane = seat.spec.name
        seat.in_flight += 1
        del self._waiting[ask.number]
        self._models[ask.model].queue.remove(ask)
        return ask.number, seat.spec.name

    # fifo

    def _serve_in_order(self) -> tuple[list[tuple[int, str]], list[Swap], list[str]]:
        """Grants from the front of the queue until a request has to wait; then lanes for those that come next."""
        grants: list[tuple[int, str]] = []
        swaps: list[Swap] = []
        enters: list[str] = []
        kept: set[str] = set()
        """Models that requests further to the front wait for: their lanes keep their seats."""
        is_blocked = False
        for ask in tuple(self._waiting.values()):
            lanes = self._models[ask.model].lanes
            if not is_blocked and (best := max(lanes, key=lambda seat: seat.free)).free:
                grants.append(self._grant(ask, best))
            elif any(self._will_serve(seat) for seat in lanes):
                is_blocked = True
                kept.add(ask.model)
            elif out := [seat for seat in lanes if seat.phase is Phase.OUT]:
                is_blocked = True
                kept.add(ask.model)
                if not self._bring_in(out, kept, swaps, enters):
                    break
        if not self._waiting:
            swaps += self._make_room_for_wanted()
        return grants, swaps, enters

    def _bring_in(self, out: list[_Seat], kept: set[str], swaps: list[Swap], enters: list[str]) -> bool:
        """Seat one of these lanes, if a seat is free or a lane without requests can give one away."""
        for seat in out:
            if self._free_seats(seat.spec.place.number) > 0:
                enters.append(self._enter(seat))
                return True
        for seat in out:
            if (idle := self._idle(seat.spec.place.number, kept)) is not None:
                swaps.append(self._give_away(idle, seat))
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

    def _make_room_for_wanted(self) -> Iterator[Swap]:
        for place in self._places:
            for seat in self._places[place]:
                if self._is_wanted(seat) and (idle := self._idle(place)) is not None:
                    yield self._give_away(idle, seat)

    # batch

    def _grant_each(self) -> Iterator[tuple[int, str]]:
        for model in self._models.values():
            while model.queue:
                best = max(model.lanes, key=lambda seat: seat.free)
                if not best.free:
                    break
                yield self._grant(model.queue[0], best)

    def _trade_seats(self, now_s: float) -> tuple[list[Swap], list[str]]:
        """At each place, free seats and those that may be given away go to the lane that has waited longest."""
        swaps: list[Swap] = []
        enters: list[str] = []
        for place, seats in self._places.items():
            while (heir := self._longest_waiting(seats)) is not None:
                if self._free_seats(place) > 0:
                    enters.append(self._enter(heir))
                elif (seat := self._dispensable(seats, heir, now_s)) is not None:
                    swaps.append(self._give_away(seat, heir))
                else:
                    break
        return swaps, enters

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
