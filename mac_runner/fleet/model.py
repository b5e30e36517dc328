"""The words of the fleet, as plain data.

A *place* is what one engine runs on: a GPU, a slice of one, a group of GPUs, or none. A *lane* is a place and a model:
one server process. A place has as many *resident* lanes as `max_agents_per_gpu` allows; where more lanes are placed on
it they take turns, and the others sleep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from mac_runner.types import JsonObject

OnEvent: TypeAlias = Callable[[str, JsonObject], None]
"""Takes an event: its name, such as `EVENT_LANE_UP`, and its fields."""


def no_events(_name: str, _fields: JsonObject) -> None:
    """For those who want no events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG slice."""

    uuid: str
    profile: str
    """Such as `3g.40gb`."""
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as `nvidia-smi` lists it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    free_mib: int
    is_mig: bool = False
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What lanes run on."""

    number: int
    gpus: tuple[Gpu, ...] = ()
    """Empty on a machine without GPUs."""
    slice: Slice | None = None

    @property
    def label(self) -> str:
        """`gpu 0`, `gpus 0-1`, `gpus 0, 2`, `gpu 0 slice MIG-…` or `place 0`."""
        if not self.gpus:
            return f"place {self.number}"
        if self.slice is not None:
            return f"gpu {self.gpus[0].index} slice {self.slice.uuid}"
        if len(self.gpus) == 1:
            return f"gpu {self.gpus[0].index}"
        indices = [gpu.index for gpu in self.gpus]
        if indices == list(range(indices[0], indices[-1] + 1)):
            return f"gpus {indices[0]}-{indices[-1]}"
        return f"gpus {', '.join(map(str, indices))}"

    @property
    def visible(self) -> tuple[str, ...]:
        """What `CUDA_VISIBLE_DEVICES` names."""
        return (self.slice.uuid,) if self.slice is not None else tuple(str(gpu.index) for gpu in self.gpus)

    @property
    def memory_mib(self) -> int | None:
        """The memory of each of its GPUs, or of its slice; of the smallest where they differ. None without a GPU."""
        if self.slice is not None:
            return self.slice.memory_mib
        return min((gpu.memory_mib for gpu in self.gpus), default=None)


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
