"""Which engine runs where: GPUs, models and limits to lanes with memory shares and ports. Starts nothing.

Lanes go to the place that has the fewest, so distinct GPUs come first. A place has as many resident lanes as
`max_agents_per_gpu` allows, and fewer where it has fewer lanes: a single model has the whole GPU. Where there are more
models than resident lanes, some places get more lanes than that, which take turns.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import floor
from pathlib import Path
from typing import Final, Literal, TypeAlias

from mac_runner.backends.fleet import plain_name, vllm_program
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.nano import missing_packages
from mac_runner.errors import ConfigError
from mac_runner.extras import install_command
from mac_runner.files import read_regular
from mac_runner.fleet.gpus import Gpu, Place, Slice, among, discover
from mac_runner.fleet.lane import LaneSpec
from mac_runner.problems import Problem, config_error, dotted
from mac_runner.spec import FleetConfig

MEMORY_SHARE: Final = 0.92
"""The share of a GPU's memory that its engines take together."""
FIRST_PORT: Final = 20_000
LAST_PORT: Final = 32_000
"""Below the ports that the system gives to outgoing connections, which could take a lane's port while it restarts."""
_PORT_STEP: Final = 61
_PORT_MAX: Final = 65_535
_SHARE_STEPS: Final = 10_000
_GIB_MIB: Final = 1024
_MIB: Final = 2**20
_HALVES: Final[Mapping[int, str]] = {
    24: "2g.12gb",
    40: "3g.20gb",
    80: "3g.40gb",
    94: "3g.47gb",
    96: "3g.48gb",
    141: "3g.71gb",
}
"""By a GPU's memory in GiB, the profile of which two slices fit on it."""
_WITH_MIG: Final = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B200|GB200|B300|GB300)\b")
_WEIGHT_FILES: Final = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin")
"""Those of the first pattern that a directory has; it may hold the same weights twice."""
_SHRINKING: Final = frozenset({"quantization", "cpu_offload_gb", "load_format", "dtype"})
"""Flags by which weights take another amount of GPU memory than their files."""
_CONFIG_BYTES_MAX: Final = 1_000_000


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
    ports: LoopbackPorts | None = None
    """What keeps the ports of the lanes from other fleets."""

    @property
    def slots(self) -> int:
        """How many requests the lanes that may be resident together serve at once."""
        return sum(
            sum(sorted((lane.slots for lane in self.on(place)), reverse=True)[: self.config.max_agents_per_gpu])
            for place in self.places
        )

    def on(self, place: Place) -> tuple[LaneSpec, ...]:
        return tuple(lane for lane in self.lanes if lane.place.number == place.number)


def local_plan(
    config: FleetConfig,
    models: Mapping[str, FleetModelConfig],
    keys: frozenset[str] = frozenset(),
    *,
    is_dry: bool = False,
) -> FleetPlan:
    """The lanes of `models`, by their names, on this machine. `keys` are the variables with keys of other servers.

    With `is_dry` nothing will be started, so a program that is missing here is a note and no error.

    Raises LayoutError with all that does not fit, GpuError where the GPUs cannot be listed.
    """
    gpus = None if isinstance(config.gpus, int) else discover()
    if gpus is not None:
        gpus = among(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    weights = {name: size for name, model in models.items() if (size := weight_bytes(model)) is not None}
    programs = [problem for name, model in models.items() for problem in _missing_programs(name, model)]
    problems = [problem for name, model in models.items() for problem in _missing_files(name, model)]
    problems += [] if is_dry else programs
    try:
        plan = lay_out(config, models, gpus, LoopbackPorts(), weights=weights)
    except LayoutError as error:
        raise LayoutError([*error.problems, *problems]) from error
    if problems:
        raise LayoutError(problems)
    return replace(plan, keys=keys, notes=(*plan.notes, *(f"{dotted(path)}: {text}" for path, text in programs)))


def _missing_files(name: str, model: FleetModelConfig) -> Iterator[Problem]:
    """A model that is named as a directory, and is none; a template that is not what it was when a run recorded it."""
    is_directory = model.model.startswith(("/", "./", "../", "~"))
    if model.engine != "command" and is_directory and not Path(model.model).is_dir():
        text = f"there is no directory {model.model} here; write the path of a model in full, or its name on the hub"
        yield Problem(("model_definitions", name, "fleet_config", "model"), text)
    try:
        if model.chat_template is not None:
            model.chat_template.content()
    except ConfigError as fault:
        yield Problem(("model_definitions", name, "fleet_config", "chat_template"), str(fault))


def _missing_programs(name: str, model: FleetModelConfig) -> Iterator[Problem]:
    """What is not installed here that the engines of a model need."""
    section = ("model_definitions", name, "fleet_config")
    if model.engine == "nano" and (packages := missing_packages()):
        yield Problem(
            (*section, "engine"),
            f"'nano' needs {', '.join(packages)}, not installed here; `{install_command('nano')}` installs it",
        )
    if model.engine == "vllm" and shutil.which(vllm_program()) is None:
        text = "'vllm' needs the program vllm, which is neither beside this Python nor in PATH; install vLLM"
        yield Problem((*section, "engine"), text)
    if model.command and "{" not in model.command[0] and shutil.which(model.command[0]) is None:
        text = f"there is no program {model.command[0]!r}; write its path, or put it into PATH"
        yield Problem((*section, "command", 0), text)


def weight_bytes(model: FleetModelConfig) -> int | None:
    """What the weights of a model in a local directory take in a GPU; None where files do not say it."""
    folder = Path(model.model)
    if model.engine == "command" or not _SHRINKING.isdisjoint(map(plain_name, model.engine_args)):
        return None
    for pattern in _WEIGHT_FILES:
        if files := [path for path in folder.glob(pattern) if path.is_file()]:
            size = sum(path.stat().st_size for path in files)
            return size // 2 if _is_float32(folder) else size
    return None


def _is_float32(folder: Path) -> bool:
    """Whether an engine halves the weights, because it computes with 16 bits by default."""
    try:
        found = json.loads(read_regular(folder / "config.json", _CONFIG_BYTES_MAX))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "float32" in (found.get("torch_dtype"), found.get("dtype"))


class LoopbackPorts:
    """Ports of 127.0.0.1 for engines. Those that it took are its own for as long as it is there.

    An engine listens seconds or minutes after its port was chosen. Until then, and while it starts again, the port is
    kept from other fleets by a UDP socket of the same number, on which nothing is ever sent.
    """

    def __init__(self) -> None:
        self._kept = ExitStack()
        weakref.finalize(self, self._kept.close)

    def is_free(self, port: int) -> bool:
        """Whether an engine could listen on it now."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    def take(self, count: int) -> tuple[int, ...]:
        """So many free ports, from a place in the range that differs between processes."""
        width = LAST_PORT - FIRST_PORT
        start = os.getpid() * _PORT_STEP % width
        taken: list[int] = []
        for offset in range(width):
            if len(taken) == count:
                break
            if self.is_free(port := FIRST_PORT + (start + offset) % width) and self._keep(port):
                taken.append(port)
        if len(taken) < count:
            ports = f"{FIRST_PORT}-{LAST_PORT}"
            raise ConfigError(f"fleet: {count} engines need a port each, and {len(taken)} of {ports} are free")
        return tuple(taken)

    def _keep(self, port: int) -> bool:
        """Keep a port from others; False where one of them has it."""
        kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            return False
        self._kept.enter_context(kept)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """What engines may run on, and in `notes` why it is not more."""

    whole: tuple[Gpu, ...] = ()
    slices: tuple[tuple[Gpu, Slice], ...] = ()
    without_gpu: int = 0
    """How many places a machine without GPUs has."""
    notes: tuple[str, ...] = ()


def usable(config: FleetConfig, gpus: Sequence[Gpu] | None) -> Usable:
    """The GPUs and slices that `fleet` allows, of those that are there; None: `nvidia-smi` is not installed.

    Raises LayoutError where there is none.
    """
    if isinstance(config.gpus, int):
        if not config.enable_mig:
            return Usable(without_gpu=config.gpus)
        text = "asks for slices of GPUs, and fleet.gpus is a number of places without a GPU; leave one of the two out"
        raise LayoutError([Problem(("fleet", "enable_mig"), text)])
    if not gpus:
        why = "nvidia-smi is not installed here" if gpus is None else "nvidia-smi lists none that this process may use"
        remedy = "on a machine without GPUs write how many engines may run side by side, such as `gpus: 2`"
        raise LayoutError([Problem(("fleet", "gpus"), f"there is no GPU: {why}; {remedy}")])
    known = {gpu.index: gpu for gpu in gpus}
    if isinstance(config.gpus, tuple) and (unknown := [index for index in config.gpus if index not in known]):
        there = ", ".join(map(str, sorted(known)))
        text = f"there is no GPU {', '.join(map(str, unknown))} for this process; there are {there}"
        raise LayoutError([Problem(("fleet", "gpus"), text)])
    chosen = gpus if config.gpus == "auto" else [known[index] for index in config.gpus]
    reasons = {gpu.index: reason for gpu in chosen if (reason := _unfit(gpu, config))}
    if reasons and (config.gpus != "auto" or len(reasons) == len(chosen)):
        raise LayoutError([Problem(("fleet", "gpus"), reason) for reason in reasons.values()])
    fit = [gpu for gpu in chosen if gpu.index not in reasons]
    notes = [f"{reason}; it is left out" for reason in reasons.values()]
    if len(fit) > config.max_gpus:
        left = ", ".join(str(gpu.index) for gpu in fit[config.max_gpus :])
        notes.append(f"gpu {left}: left out, because fleet.max_gpus is {config.max_gpus}")
    return _with_slices(config, fit[: config.max_gpus], notes)


def _with_slices(config: FleetConfig, gpus: Sequence[Gpu], notes: list[str]) -> Usable:
    """The GPUs as they are, or the slices of those that have MIG on."""
    slices = tuple((gpu, each) for gpu in gpus for each in gpu.slices) if config.enable_mig else ()
    if config.enable_mig and not slices:
        raise LayoutError([Problem(("fleet", "enable_mig"), mig_remedy(gpus[0]))])
    if slices:
        notes.append(
            "some releases of vLLM read the memory of another GPU for an engine on a slice: compare the size of the KV "
            "cache in its log with the slice"
        )
    return Usable(whole=tuple(gpu for gpu in gpus if not gpu.is_mig), slices=slices, notes=tuple(notes))


def _unfit(gpu: Gpu, config: FleetConfig) -> str:
    """Why engines cannot run on a GPU; empty where they can."""
    if gpu.is_mig and not config.enable_mig:
        off = f"`nvidia-smi -i {gpu.index} -mig 0` turns it off (as root, on an idle GPU)"
        return f"gpu {gpu.index}: MIG is on, so it has no whole memory to give; set fleet.enable_mig: true, or {off}"
    if gpu.is_mig and not gpu.slices:
        return f"gpu {gpu.index}: {mig_remedy(gpu)}"
    if gpu.is_mig and (parts := [each.uuid for each in gpu.slices if "c." in each.profile]):
        return f"gpu {gpu.index}: the slices {', '.join(parts)} share their memory; make one compute instance for each"
    if not gpu.is_mig and gpu.free_mib < MEMORY_SHARE * gpu.memory_mib:
        free = f"{gib(gpu.free_mib)} of {gib(gpu.memory_mib)} GiB are free"
        return f"gpu {gpu.index}: {free}, and engines take {MEMORY_SHARE:.0%} of it; another process uses it"
    return ""


def mig_remedy(gpu: Gpu) -> str:
    """That a GPU has no slices, and the commands that make two."""
    if not _WITH_MIG.search(gpu.name):
        return f"{gpu.name} has no MIG slices, and none is known that it could have; leave enable_mig out"
    on = "" if gpu.is_mig else f"nvidia-smi -i {gpu.index} -mig 1 && "
    size = min(_HALVES, key=lambda gibs: abs(gibs * _GIB_MIB - gpu.memory_mib))
    is_near = abs(size * _GIB_MIB - gpu.memory_mib) < gpu.memory_mib / 30
    half = _HALVES[size] if is_near else "PROFILE"
    which = "" if half != "PROFILE" else f" (PROFILE: see `nvidia-smi mig -i {gpu.index} -lgip`)"
    command = f"`{on}nvidia-smi mig -i {gpu.index} -cgi {half},{half} -C`{which}"
    return f"{gpu.name} has no MIG slices; {command} makes two (as root, on an idle GPU), or leave enable_mig out"


def _places_for(found: Usable, by_size: Mapping[int, Collection[FleetModelConfig]]) -> Mapping[int, tuple[Place, ...]]:
    """By `tensor_parallel_size`, the places of its models; none where it has no room.

    Each size gets one place first. The rest goes to the size that has the fewest GPUs for each of its models.
    """
    if found.without_gpu:
        # Engines of different sizes share places without GPUs: only the number of processes differs.
        return dict.fromkeys(by_size, tuple(Place(number=number) for number in range(found.without_gpu)))
    gpus, slices, numbers = iter(found.whole), iter(found.slices), count()

    def taken(size: int) -> Place:
        """The next place of a size: slices before whole GPUs."""
        if size == 1 and (part := next(slices, None)) is not None:
            return Place(number=next(numbers), gpus=(part[0],), slice=part[1])
        return Place(number=next(numbers), gpus=tuple(islice(gpus, size)))

    counts = _counts(len(found.whole), len(found.slices), by_size)
    return {size: tuple(taken(size) for _ in range(number)) for size, number in counts.items()}


def _counts(whole: int, slices: int, by_size: Mapping[int, Collection[FleetModelConfig]]) -> dict[int, int]:
    """How many places each size gets, the largest first. Slices serve engines on one GPU alone."""
    counts = dict.fromkeys(sorted(by_size, reverse=True), 0)
    wanted = {
        size: sum(float("inf") if model.lanes == "auto" else model.lanes for model in models)
        for size, models in by_size.items()
    }
    left = whole

    def has_room(size: int) -> bool:
        if counts[size] >= wanted[size]:
            return False
        return size <= left + (slices - min(slices, counts[1]) if size == 1 else 0)

    while open_to := [size for size in counts if has_room(size)]:
        size = min(open_to, key=lambda each: (counts[each] > 0, counts[each] * each / len(by_size[each])))
        if size > 1 or counts[1] >= slices:
            left -= size
        counts[size] += 1
    return counts


def gib(mib: float) -> str:
    return f"{mib / _GIB_MIB:.1f}"


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
    ports: LoopbackPorts,
    *,
    weights: Mapping[str, int] | None = None,
) -> FleetPlan:
    """The lanes of `models`, by their names. Pure. `gpus` is None where `nvidia-smi` is not installed.

    `weights` are the bytes of a model's weights, where they are known. Raises LayoutError with all that does not fit.
    """
    found = usable(config, gpus)
    layout = _Layout(config, models, found, weights or {})
    layout.fill()
    lanes = [lane for shelf in layout.shelves for lane in layout.lanes_on(shelf)]
    problems = [*layout.problems, *_port_problems(config, lanes, ports)]
    if problems:
        raise LayoutError(problems)
    first = config.first_port
    numbers = ports.take(len(lanes)) if first is None else range(first, first + len(lanes))
    placed = tuple(replace(lane, port=port) for lane, port in zip(lanes, numbers, strict=True))
    return FleetPlan(
        config=config,
        models=dict(models),
        places=tuple(shelf.place for shelf in layout.shelves),
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
        by_size: dict[int, list[FleetModelConfig]] = {}
        for model in models.values():
            by_size.setdefault(model.tensor_parallel_size, []).append(model)
        places = _places_for(found, by_size)
        shelves = {place.number: _Shelf(place) for group in places.values() for place in group}
        self._of_size = {size: [shelves[place.number] for place in group] for size, group in places.items()}
        self.shelves = [shelves[number] for number in sorted(shelves)]

    def fill(self) -> None:
        """One lane for each model, then the lanes that are asked for, then as many as have room for `auto`."""
        # Those that cannot take turns come first, then the heaviest.
        order = sorted(
            self._models, key=lambda name: (self._models[name].engine != "command", -self._weights.get(name, 0.0))
        )
        placed = [name for name in order if self._first(name)]
        self._ask({name: lanes - 1 for name in placed if (lanes := self._models[name].lanes) != "auto"})
        self._grow([name for name in self._models if name in placed and self._models[name].lanes == "auto"])

    def notes(self) -> Iterator[str]:
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

    def _first(self, name: str) -> bool:
        """Whether a model has a place; a problem says why not."""
        model = self._models[name]
        if not self._of_size[size := model.tensor_parallel_size]:
            whole, slices = len(self._found.whole), len(self._found.slices)
            there = f"{whole} whole GPUs are there" if not slices else f"{whole} are there beside {slices} slices"
            text = f"is {size}, and {there} for all models together; use a smaller one, or more GPUs"
            self._refuse(name, "tensor_parallel_size", text)
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
        return [shelf for shelf in found if not self._is_too_heavy(shelf.place, [*shelf.models, name])]

    def _may_take_turns(self, shelf: _Shelf, name: str) -> bool:
        names = [*shelf.models, name]
        is_full, has_distinct = len(names) > self._limit, len(set(names)) == len(names)
        engines = {self._models[each].engine for each in names}
        return is_full and has_distinct and self._swap != "off" and "command" not in engines

    def _is_too_heavy(self, place: Place, names: Sequence[str]) -> bool:
        """Whether the weights of one of these models exceed its share of the place."""
        if place.memory_mib is None:
            return False
        room = _share(len(names), self._limit) * place.memory_mib * len(place.gpus)
        return any(self._weights.get(name, 0.0) > room for name in names)

    def _refuse_first(self, name: str) -> None:
        """A problem for a model that has no place at all: too heavy for all of them, or no turn to take."""
        shelves = self._of_size[self._models[name].tensor_parallel_size]
        alone = [shelf.place for shelf in shelves if not self._is_too_heavy(shelf.place, [name])]
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

    def _weight_text(self, name: str, place: Place) -> str:
        model, memory = self._models[name], place.memory_mib
        assert memory is not None, "what has no GPU has no bound"
        size = self._weights[name]
        kind = place.gpus[0].name if place.slice is None else f"a slice {place.slice.profile} of {place.gpus[0].name}"
        each = f"{MEMORY_SHARE:.0%} of {gib(memory)} GiB ({kind})"
        of = each if len(place.gpus) == 1 else f"{len(place.gpus)} times {each}"
        needed = next((2**n for n in count(1) if 2**n * MEMORY_SHARE * memory >= size), 2)
        split = f"split it with tensor_parallel_size: {needed}" if place.slice is None else "use whole GPUs"
        room = f"an engine gets at most {gib(MEMORY_SHARE * memory * len(place.gpus))} GiB on {place.label}: {of}"
        return f"{model.model} has {gib(size)} GiB of weights, and {room}; {split}, or use a smaller model"

    def lanes_on(self, shelf: _Shelf) -> Iterator[LaneSpec]:
        """The lanes of a place, each without its port."""
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


def _share(lanes: int, limit: int) -> float:
    """The share of memory of each lane, where so many are on a place; rounded down."""
    return floor(MEMORY_SHARE / max(1, min(lanes, limit)) * _SHARE_STEPS) / _SHARE_STEPS


def _port_problems(config: FleetConfig, lanes: Sequence[LaneSpec], ports: LoopbackPorts) -> Iterator[Problem]:
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
