"""Which lane an agent's requests go to: distinct places first, then shared lanes, each in round-robin order.

Pure; a call costs O(log n) in agents and lanes. Agents of one checkpoint share its lanes, and a place holds at most
`max_agents_per_gpu` checkpoints that agents use, unless they take turns. A lane that ends strands its agents; they are
settled on the least loaded lanes of their model, and stay there when it returns. New agents then go to the lane that
returned, since it has the fewest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mac_runner.fleet.model import LaneSpec

T = TypeVar("T")


class _Least(Generic[T]):
    """Items by a key that changes: an item is pushed again with each change, and old entries are dropped when met."""

    def __init__(self, key: Callable[[T], tuple[int, ...] | None]) -> None:
        self._key = key
        """None: the item must not be taken now."""
        self._heap: list[tuple[tuple[int, ...], int, T]] = []
        self._pushed = 0
        self._crowd = 64
        """Entries at which the old ones are removed."""

    def push(self, item: T) -> None:
        """Say that the key of an item may have changed."""
        if (key := self._key(item)) is not None:
            self._pushed += 1
            heapq.heappush(self._heap, (key, self._pushed, item))
            if len(self._heap) > self._crowd:
                fresh = {id(entry[2]): entry for entry in self._heap if entry[0] == self._key(entry[2])}
                self._heap = sorted(fresh.values())
                self._crowd = max(64, 4 * len(self._heap))

    def peek(self, is_barred: Callable[[T], bool] = lambda _item: False) -> T | None:
        """The item with the least key among those that are not barred, which should be few."""
        passed: list[tuple[tuple[int, ...], int, T]] = []
        found: T | None = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            if entry[0] != self._key(entry[2]):
                continue
            passed.append(entry)
            found = None if is_barred(entry[2]) else entry[2]
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found


@dataclass(slots=True, eq=False)
class _Lane:
    name: str
    model: str
    place: int
    is_up: bool = True
    agents: dict[str, None] = field(default_factory=dict)
    turn: int = 0
    """When an agent was last settled here: the lane that was used longest ago is next."""


@dataclass(slots=True, eq=False)
class _Place:
    number: int
    lanes: dict[str, _Lane] = field(default_factory=dict)
    """By model."""
    agents: int = 0
    used: int = 0
    """Checkpoints that agents use."""
    turn: int = 0


class RoundRobinAllocator:
    """Agents to lanes.

    With `lanes` given those exist and no others; else a lane of any model may be opened on any place. `may_swap` says
    whether a place may have more checkpoints than `max_agents_per_gpu`, which then take turns.
    """

    def __init__(
        self,
        places: Sequence[int],
        max_agents_per_gpu: int,
        *,
        lanes: Mapping[str, Sequence[int]] | None = None,
        may_swap: bool = False,
    ) -> None:
        self._max = max_agents_per_gpu
        self._may_swap = may_swap
        self._is_open = lanes is None
        self._places = {number: _Place(number) for number in places}
        self._lanes: dict[str, _Lane] = {}
        self._homes: dict[str, _Lane | None] = {}
        """The lane of each agent; None while it is stranded."""
        self._models: dict[str, str] = {}
        """The model of each agent."""
        self._stranded: dict[str, dict[str, None]] = {}
        """The agents without a lane, by model."""
        self._turn = 0
        self._lone: dict[str, _Least[_Lane]] = {}
        """The lanes of each model whose place has no agents."""
        self._shared: dict[str, _Least[_Lane]] = {}
        """All lanes of each model."""
        self._room: _Least[_Place] = _Least(self._room_key)
        """Where a lane may be opened."""
        for place in self._places.values():
            self._room.push(place)
        for model, numbers in (lanes or {}).items():
            for number in numbers:
                self._open(model, self._places[number])

    @classmethod
    def of(cls, lanes: Iterable[LaneSpec], max_agents_per_gpu: int) -> RoundRobinAllocator:
        """For the lanes of a plan, which may take turns."""
        by_model: dict[str, list[int]] = {}
        for lane in lanes:
            by_model.setdefault(lane.model, []).append(lane.place.number)
        places = sorted({number for numbers in by_model.values() for number in numbers})
        return cls(places, max_agents_per_gpu, lanes=by_model, may_swap=True)

    def lane_of(self, agent: str) -> str | None:
        """Where an agent's requests go; None while no lane of its model is up."""
        lane = self._homes[agent]
        return lane.name if lane is not None else None

    def load(self, lane: str) -> int:
        """How many agents a lane has."""
        return len(self._lanes[lane].agents)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The agents without a lane."""
        return tuple(agent for agents in self._stranded.values() for agent in agents)

    def allocate(self, agent: str, model: str, lane_hint: int | None = None) -> str:
        """Settle a new agent; `lane_hint` is the number of a place. Raises ValueError where that cannot be."""
        if agent in self._homes:
            raise ValueError(f"agent {agent!r} is registered already")
        if lane_hint is not None:
            lane = self._hinted(agent, model, lane_hint)
        elif (found := self._choose(model)) is not None:
            lane = found
        else:
            raise ValueError(self._no_room(agent, model))
        self._models[agent] = model
        self._settle(agent, lane)
        return lane.name

    def release(self, agent: str) -> None:
        """Forget an agent; its share of its lane is free."""
        self._leave(agent)
        self._stranded.get(self._models[agent], {}).pop(agent, None)
        del self._homes[agent], self._models[agent]

    def strand(self, lane: str) -> tuple[str, ...]:
        """A lane is down: returns its agents, which have no lane until they are settled again."""
        down = self._lanes[lane]
        down.is_up = False
        agents = tuple(down.agents)
        for agent in agents:
            self._leave(agent)
            self._homes[agent] = None
            self._stranded.setdefault(down.model, {})[agent] = None
        return agents

    def resettle(self, agents: Iterable[str]) -> dict[str, str | None]:
        """Settle stranded agents, each on the least loaded lane of its model; None where none is up."""
        settled = {}
        for agent in agents:
            model = self._models[agent]
            if self._homes[agent] is None and (lane := self._least_loaded(model)) is not None:
                del self._stranded[model][agent]
                self._settle(agent, lane)
            settled[agent] = self.lane_of(agent)
        return settled

    def returned(self, lane: str) -> dict[str, str | None]:
        """A lane is up again: agents that waited for one of its model are settled; the others stay where they are."""
        back = self._lanes[lane]
        back.is_up = True
        self._changed(back)
        return self.resettle(tuple(self._stranded.get(back.model, ())))

    # Choice

    def _choose(self, model: str) -> _Lane | None:
        """A place of its own first, then a lane of its model, then a new lane where there is room."""
        lone = self._lone[model].peek() if model in self._lone else None
        place = self._room.peek(lambda place: self._is_down(model, place)) if self._is_open else None
        if place is not None and not place.agents:
            return self._open(model, place)
        if (lane := lone or self._least_loaded(model)) is not None:
            return lane
        return self._open(model, place) if place is not None else None

    def _least_loaded(self, model: str) -> _Lane | None:
        """Of the lanes that are up; one that would be a checkpoint too many on its place is not taken."""
        return self._shared[model].peek() if model in self._shared else None

    def _is_down(self, model: str, place: _Place) -> bool:
        lane = place.lanes.get(model)
        return lane is not None and not lane.is_up

    def _hinted(self, agent: str, model: str, number: int) -> _Lane:
        place = self._places.get(number)
        if place is None:
            numbers = ", ".join(map(str, self._places))
            raise ValueError(f"agent {agent!r}: lane_hint {number} is not a place of this fleet, which has {numbers}")
        lane = place.lanes.get(model)
        if lane is None and not self._is_open:
            held = ", ".join(place.lanes) or "nothing"
            raise ValueError(f"agent {agent!r}: place {number} of lane_hint holds {held}, and not {model}")
        if lane is None or not lane.agents:
            if place.used >= self._max and not self._may_swap:
                used = ", ".join(lane.model for lane in place.lanes.values() if lane.agents)
                raise ValueError(
                    f"agent {agent!r}: place {number} of lane_hint holds {used} already, and max_agents_per_gpu is "
                    f"{self._max}: choose another place, or raise max_agents_per_gpu"
                )
            lane = self._open(model, place)
        if not lane.is_up:
            raise ValueError(f"agent {agent!r}: {lane.name} of lane_hint is down: try again once it is up")
        return lane

    def _no_room(self, agent: str, model: str) -> str:
        names = [lane.name for lane in self._lanes.values() if lane.model == model]
        if not names and not self._is_open:
            return f"agent {agent!r}: the fleet has no lane for {model}"
        if names and not any(self._lanes[name].is_up for name in names):
            return f"agent {agent!r}: no lane of {model} is up ({', '.join(names)}): try again once one is"
        return (
            f"agent {agent!r}: all {len(self._places)} places hold {self._max} other checkpoints "
            f"(max_agents_per_gpu): raise it, or use more GPUs"
        )

    # Bookkeeping

    def _open(self, model: str, place: _Place) -> _Lane:
        lane = place.lanes.get(model)
        if lane is None:
            lane = place.lanes[model] = _Lane(f"{model}@{place.number}", model, place.number)
            self._lanes[lane.name] = lane
            self._shared.setdefault(model, _Least(self._shared_key))
            self._lone.setdefault(model, _Least(self._lone_key))
            self._changed(lane)
        return lane

    def _settle(self, agent: str, lane: _Lane) -> None:
        place = self._places[lane.place]
        self._turn += 1
        lane.turn = place.turn = self._turn
        place.used += not lane.agents
        place.agents += 1
        lane.agents[agent] = None
        self._homes[agent] = lane
        self._changed(lane)

    def _leave(self, agent: str) -> None:
        lane = self._homes[agent]
        if lane is None:
            return
        place = self._places[lane.place]
        del lane.agents[agent]
        place.agents -= 1
        place.used -= not lane.agents
        self._changed(lane)

    def _changed(self, lane: _Lane) -> None:
        """Put a lane, its place and the place's other lanes where they belong now."""
        place = self._places[lane.place]
        for other in place.lanes.values():
            self._shared[other.model].push(other)
            self._lone[other.model].push(other)
        self._room.push(place)

    def _shared_key(self, lane: _Lane) -> tuple[int, ...] | None:
        place = self._places[lane.place]
        is_too_many = not lane.agents and place.used >= self._max and not self._may_swap
        return None if not lane.is_up or is_too_many else (len(lane.agents), lane.turn, lane.place)

    def _lone_key(self, lane: _Lane) -> tuple[int, ...] | None:
        place = self._places[lane.place]
        return (place.turn, place.number) if lane.is_up and not place.agents else None

    def _room_key(self, place: _Place) -> tuple[int, ...] | None:
        """The place with the fewest checkpoints, then with the fewest agents."""
        has_room = place.used < self._max or self._may_swap
        return (place.used, place.agents, place.turn, place.number) if has_room else None
