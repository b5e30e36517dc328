"""Which engine runs where: GPUs, models and limits to lanes with memory shares and ports. Pure.

Lanes go to the place that has the fewest, so distinct GPUs come first. A place has as many resident lanes as
`max_agents_per_gpu` allows, and fewer where it has fewer lanes: a single model has the whole GPU. Where there are more
models than resident lanes, some places get more lanes than that, which take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import floor
from typing import Final, Literal, TypeAlias

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.config import FleetConfig
from mac_runner.errors import ConfigError
from mac_runner.fleet.model import Gpu, LaneSpec, Place
from mac_runner.fleet.places import MEMORY_SHARE, Usable, Wish, gib, places_for, usable
from mac_runner.fleet.ports import Ports
from mac_runner.problems import Problem, config_error, dotted

_SHARE_STEPS: Final = 10_000
_PORT_MAX: Final = 65_535
_MIB: Final = 2**20


class LayoutError(ConfigError):
    """Models that do not fit on the GPUs, with everything that does not fit."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        lines = dict.fromkeys(f"{dotted(path)}: {text}" for path, text in problems)
        super().__init__(str(config_error(lines)), key=problems[0].path if len(problems) == 1 else ())
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """A fleet that fits, not started."""

    config: FleetConfig
    models: Mapping[str, FleetModelConfig]
    places: tuple[Place, ...]
    lanes: tuple[LaneSpec, ...]
    notes: tuple[str, ...] = ()
    """What to know about it, such as GPUs that are left out and models that take turns."""
    keys: frozenset[str] = frozenset()
    """The variables with the keys of other servers, by what experiments say; engines do not get them."""
    ports: Ports | None = None
    """Whoever keeps the ports that it chose for the lanes from other fleets."""

    @property
    def slots(self) -> int:
        """How many requests the lanes that may be resident together serve at once."""
        return sum(
            sum(sorted((lane.slots for lane in self.on(place)), reverse=True)[: self.config.max_agents_per_gpu])
            for place in self.places
        )

    def on(self, place: Place) -> tuple[LaneSpec, ...]:
        """The lanes of a place."""
        return tuple(lane for lane in self.lanes if lane.place.number == place.number)


_Way: TypeAlias = Literal["empty_of_it", "beside_itself", "taking_turns"]
"""How a place may take a lane: it has none of the model, or one, or its lanes take turns from then on."""


@dataclass(slots=True)
class _Shelf:
    """A place and the models that are put on it, one name for each lane."""

    place: Place
    models: list[str] = field(default_factory=list)


def lay_out(
    config: FleetConfig,
    models: Mapping[str, FleetModelConfig],
    gpus: Sequence[Gpu] | None,
    ports: Ports,
    *,
    weights: Mapping[str, int] | None = None,
) -> FleetPlan:
    """The lanes of `models`, by their names. `gpus` is None where `nvidia-smi` is not installed.

    `weights` are the bytes of a model's weights, where they are known. Raises LayoutError with all that does not fit.
    """
    found = usable(config, gpus)
    if found.problems:
        raise LayoutError(found.problems)
    layout = _Layout(config, models, found, weights or {})
    layout.fill()
    lanes = layout.lanes()
    problems = [*layout.problems, *_port_problems(config, lanes, ports)]
    if problems:
        raise LayoutError(problems)
    numbers = ports.take(len(lanes)) if config.first_port is None else tuple(range(config.first_port, _PORT_MAX + 1))
    placed = tuple(replace(lane, port=port) for lane, port in zip(lanes, numbers, strict=False))
    places = {lane.place.number: lane.place for lane in placed} | {
        one.place.number: one.place for one in layout.shelves
    }
    return FleetPlan(
        config=config,
        models=dict(models),
        places=tuple(places[number] for number in sorted(places)),
        lanes=placed,
        notes=(*found.notes, *layout.notes()),
        ports=ports,
    )


class _Layout:
    """Puts models on places; collects what does not fit."""

    def __init__(
        self, config: FleetConfig, models: Mapping[str, FleetModelConfig], found: Usable, weights: Mapping[str, int]
    ) -> None:
        self._limit = config.max_agents_per_gpu
        self._swap = config.swap.policy
        self._models = models
        self._weights = {name: size / _MIB for name, size in weights.items()}
        self._found = found
        self.problems: list[Problem] = []
        places = places_for(found, _wishes(models))
        shelves = {place.number: _Shelf(place) for group in places.values() for place in group}
        self._of_size = {size: [shelves[place.number] for place in group] for size, group in places.items()}
        self.shelves = [shelves[number] for number in sorted(shelves)]

    def fill(self) -> None:
        """One lane for each model, then the lanes that are asked for, then as many as have room for `auto`."""
        placed = [name for name in self._by_difficulty() if self._first(name)]
        self._ask({name: lanes - 1 for name in placed if (lanes := self._models[name].lanes) != "auto"})
        self._grow([name for name in self._models if name in placed and self._models[name].lanes == "auto"])

    def lanes(self) -> list[LaneSpec]:
        """The lanes, each without its port."""
        return [lane for shelf in self.shelves for lane in self._lanes_on(shelf)]

    def notes(self) -> Iterator[str]:
        """What to know about the layout."""
        for shelf in self.shelves:
            if len(shelf.models) > self._limit:
                names = ", ".join(dict.fromkeys(shelf.models))
                yield (
                    f"{shelf.place.label}: {names} take turns, {self._limit} at a time (swap: {self._swap}); a request "
                    "waits until its model is resident"
                )
        if idle := self._idle():
            yield f"without a lane: {', '.join(idle)}; the models ask for no more engines than this"
        checkpoints: dict[str, list[str]] = {}
        for name, model in self._models.items():
            checkpoints.setdefault(model.model, []).append(name)
        for checkpoint, several in checkpoints.items():
            if len(several) > 1:
                yield f"{', '.join(several)} serve {checkpoint} in engines of their own; one entry would share them"

    def _idle(self) -> list[str]:
        """The GPUs, slices and places that have no lane."""
        places = [shelf.place for shelf in self.shelves if shelf.models]
        used, numbers = {name for place in places for name in place.visible}, {place.number for place in places}
        gpus = [f"gpu {gpu.index}" for gpu in self._found.whole if str(gpu.index) not in used]
        parts = [f"slice {part.uuid}" for _, part in self._found.slices if part.uuid not in used]
        return [*gpus, *parts, *(f"place {n}" for n in range(self._found.without_gpu) if n not in numbers)]

    def _by_difficulty(self) -> list[str]:
        """The models that cannot take turns first, then by their weights."""
        return sorted(
            self._models, key=lambda name: (self._models[name].engine != "command", -self._weights.get(name, 0.0))
        )

    def _first(self, name: str) -> bool:
        """Whether a model has a place; a problem says why not."""
        model = self._models[name]
        if not self._of_size[model.tensor_parallel_size]:
            self._refuse(name, "tensor_parallel_size", self._no_group(model.tensor_parallel_size))
            return False
        if self._put(name, ("empty_of_it", "taking_turns")):
            return True
        self._refuse_first(name)
        return False

    def _ask(self, missing: dict[str, int]) -> None:
        """As many lanes as each model asks for besides its first; the others are refused."""
        ways: tuple[_Way, ...] = ("empty_of_it", "beside_itself", "taking_turns")
        for way in ways:
            growing = [name for name, number in missing.items() if number]
            while growing:
                growing = [name for name in growing if missing[name] and self._put(name, (way,))]
                for name in growing:
                    missing[name] -= 1
        for name, number in missing.items():
            if number:
                asked = self._models[name].lanes
                assert asked != "auto"
                room = f"there is room for {asked - number} of them: {self._room(name)}"
                self._refuse(name, "lanes", f"asks for {asked} engines, and {room}")

    def _grow(self, names: Iterable[str]) -> None:
        """As many lanes as have room: the model with the fewest takes the next, and of several the least free one."""
        lanes = dict.fromkeys(names, 1)
        while lanes:
            options = {name: len(self._open_to(name, "empty_of_it")) for name in lanes}
            lanes = {name: number for name, number in lanes.items() if options[name]}
            if lanes:
                name = min(lanes, key=lambda each: (lanes[each], options[each]))
                self._put(name, ("empty_of_it",))
                lanes[name] += 1

    def _put(self, name: str, ways: Iterable[_Way]) -> bool:
        """Give a model another lane, on the place with the fewest lanes that has room in the first possible way."""
        for way in ways:
            if open_to := self._open_to(name, way):
                min(open_to, key=lambda shelf: len(shelf.models)).models.append(name)
                return True
        return False

    def _open_to(self, name: str, way: _Way) -> list[_Shelf]:
        """The places that have room for another lane of a model."""
        shelves = self._of_size[self._models[name].tensor_parallel_size]
        if way == "taking_turns":
            found = (shelf for shelf in shelves if self._may_take_turns(shelf, name))
        else:
            found = (
                shelf
                for shelf in shelves
                if len(shelf.models) < self._limit and (way == "beside_itself" or name not in shelf.models)
            )
        return [shelf for shelf in found if not self._too_heavy(shelf.place, [*shelf.models, name])]

    def _may_take_turns(self, shelf: _Shelf, name: str) -> bool:
        names = [*shelf.models, name]
        is_full, has_distinct = len(names) > self._limit, len(set(names)) == len(names)
        engines = {self._models[each].engine for each in names}
        return is_full and has_distinct and self._swap != "off" and "command" not in engines

    def _too_heavy(self, place: Place, names: Sequence[str]) -> str:
        """The first of these models whose weights exceed its share of the place; empty where all fit."""
        if place.memory_mib is None:
            return ""
        gpus = len(place.gpus)
        room = _share(len(names), self._limit) * place.memory_mib * gpus
        return next((name for name in names if self._weights.get(name, 0.0) > room), "")

    def _refuse_first(self, name: str) -> None:
        """A problem for a model that has no place at all: too heavy for all of them, or no turn to take."""
        shelves = self._of_size[self._models[name].tensor_parallel_size]
        alone = [shelf.place for shelf in shelves if not self._too_heavy(shelf.place, [name])]
        if not alone:
            self._refuse(name, "model", self._weight_text(name, shelves[0].place))
        elif self._weights.get(name) and any(
            self._may_take_turns(shelf, name) or len(shelf.models) < self._limit for shelf in shelves
        ):
            beside = f"{gib(self._weights[name])} GiB of weights do not fit beside those of the other models"
            remedy = "set fleet.max_agents_per_gpu: 1, so that they take turns" if self._limit > 1 else "use more GPUs"
            self._refuse(name, "model", f"{self._models[name].model}: {beside} on any GPU; {remedy}")
        else:
            self._refuse(name, "lanes", f"has no place: {self._room(name)}")

    def _refuse(self, name: str, key: str, text: str) -> None:
        self.problems.append(Problem(("model_definitions", name, "fleet_config", key), text))

    def _room(self, name: str) -> str:
        """Why no place takes another engine of a model, and what to do."""
        shelves = self._of_size[self._models[name].tensor_parallel_size]
        number = len(shelves)
        full = f"the {number} places have room for" if number > 1 else "the only place has room for"
        engines = "1 resident engine" if self._limit == 1 else f"{self._limit} resident engines"
        full = f"{full} {engines}{' each' if number > 1 else ''}"
        if self._swap == "off":
            return f"{full}, and fleet.swap.policy is off; let models take turns with `batch`, or use more GPUs"
        if self._models[name].engine == "command":
            return f"{full}, and an engine 'command' cannot take turns, because it cannot sleep"
        if any(self._models[each].engine == "command" for shelf in shelves for each in shelf.models):
            return f"{full}, and those of the engine 'command' cannot take turns, because they cannot sleep"
        return f"{full}, and two engines of one model cannot take turns with each other; ask for fewer"

    def _no_group(self, size: int) -> str:
        whole, slices = len(self._found.whole), len(self._found.slices)
        there = f"{whole} whole GPUs are there" if not slices else f"{whole} are there beside {slices} slices"
        return f"is {size}, and {there} for all models together; use a smaller one, or more GPUs"

    def _weight_text(self, name: str, place: Place) -> str:
        model, memory = self._models[name], place.memory_mib
        assert memory is not None, "what has no GPU has no bound"
        size = self._weights[name]
        each = f"{MEMORY_SHARE:.0%} of {gib(memory)} GiB ({_kind(place)})"
        of = each if len(place.gpus) == 1 else f"{len(place.gpus)} times {each}"
        needed = next((2**n for n in count(1) if 2**n * MEMORY_SHARE * memory >= size), 2)
        split = f"split it with tensor_parallel_size: {needed}" if place.slice is None else "use whole GPUs"
        room = f"an engine gets at most {gib(MEMORY_SHARE * memory * len(place.gpus))} GiB on {place.label}: {of}"
        return f"{model.model} has {gib(size)} GiB of weights, and {room}; {split}, or use a smaller model"

    def _lanes_on(self, shelf: _Shelf) -> Iterator[LaneSpec]:
        seen: dict[str, int] = {}
        for name in shelf.models:
            model = self._models[name]
            seen[name] = seen.get(name, 0) + 1
            again = "" if seen[name] == 1 else f".{seen[name]}"
            yield LaneSpec(
                name=f"{name}@{shelf.place.number}{again}",
                model=name,
                checkpoint=model.model,
                place=shelf.place,
                memory_share=_share(len(shelf.models), self._limit),
                port=0,
                slots=model.max_num_seqs,
                takes_turns=len(shelf.models) > self._limit,
            )


def _wishes(models: Mapping[str, FleetModelConfig]) -> list[Wish]:
    """The places that models would like, by size."""
    sizes: dict[int, list[FleetModelConfig]] = {}
    for model in models.values():
        sizes.setdefault(model.tensor_parallel_size, []).append(model)
    wishes = []
    for size, group in sizes.items():
        asked = [model.lanes for model in group if model.lanes != "auto"]
        wishes.append(Wish(size=size, models=len(group), places=sum(asked) if len(asked) == len(group) else None))
    return wishes


def _share(lanes: int, limit: int) -> float:
    """The share of memory of each lane, where so many are on a place; rounded down."""
    return floor(MEMORY_SHARE / max(1, min(lanes, limit)) * _SHARE_STEPS) / _SHARE_STEPS


def _port_problems(config: FleetConfig, lanes: Sequence[LaneSpec], ports: Ports) -> Iterator[Problem]:
    """The ports from `first_port` on that are taken."""
    if config.first_port is None:
        return
    numbers = range(config.first_port, config.first_port + len(lanes))
    path = ("fleet", "first_port")
    if numbers.stop - 1 > _PORT_MAX:
        yield Problem(path, f"{len(lanes)} engines need the ports {numbers[0]}-{numbers[-1]}; write a smaller one")
    elif taken := [
        f"{port} ({lane.name})" for port, lane in zip(numbers, lanes, strict=True) if not ports.is_free(port)
    ]:
        text = f"in use on 127.0.0.1: {', '.join(taken)}; choose another one, or null for ports that are free"
        yield Problem(path, text)


def _kind(place: Place) -> str:
    return place.gpus[0].name if place.slice is None else f"a slice {place.slice.profile} of {place.gpus[0].name}"
