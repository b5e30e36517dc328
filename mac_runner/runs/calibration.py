"""Calibrates the engines of an experiment, one after the other, each with nothing beside it.

A model on several servers is measured on the first of them: a calibration is of one lane.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner import __version__
from mac_runner.backends.base import Backend
from mac_runner.backends.factory import backend_on_fleet
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition, Written
from mac_runner.config.materials import MaterialError, read_calibrations
from mac_runner.errors import ConfigError
from mac_runner.fleet.gpus import discover
from mac_runner.fleet.layout import FleetPlan
from mac_runner.fleet.model import LaneSpec, Place, no_events
from mac_runner.fleet.probe import EngineClient, EngineRefusedError
from mac_runner.fleet.supervisor import LocalFleet
from mac_runner.latency import Calibration, Calibrations
from mac_runner.runs.engines import Engine, plan_engines
from mac_runner.runs.fleet import fleet_plan
from mac_runner.runs.setup import ExperimentSet, located
from mac_runner.runs.sweeps import SWEEP_S, EngineName, calibrate
from mac_runner.types import JsonObject

SLOTS_MAX: Final = 256
"""The most requests that the last sweep keeps in flight where nobody asks for more."""
UNKNOWN: Final = "unknown"
"""The GPU of a server that does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """How engines are measured."""

    seconds: float = SWEEP_S
    """How long each sweep sends requests; longer where too few of them were answered."""
    in_flight: int | None = None
    """How many requests the last sweep keeps in flight; None: as many as the engine serves at once."""
    gpu: str | None = None
    """The name of the GPU, where it is not to be looked up."""

    def slots(self, capacity: int) -> int:
        """How many requests the last sweep keeps in flight on an engine that serves `capacity` at once."""
        return min(capacity, SLOTS_MAX) if self.in_flight is None else min(self.in_flight, capacity)


class _Ready(NamedTuple):
    """An engine that is up, and serves nothing."""

    name: str
    backend: Backend
    of: EngineName
    capacity: int


def server_experiment(base_url: str, model: str) -> Written:
    """The smallest experiment with a model behind a server."""
    settings: JsonObject = {"model": model, "base_urls": [base_url], "max_in_flight": SLOTS_MAX}
    value: JsonObject = {
        "experiment_metadata": {"experiment_name": "calibration"},
        "conversation_config": {"environment": "echo", "conversations": 1},
        "echo": {"rounds": 1},
        "model_definitions": {"server": {"backend": "openai", "openai_config": settings}},
        "agent_definitions": [{"agent_id": "one", "role": "participant", "model": "server"}],
    }
    return Written(value=value, base=Path(), name="--base-url")


async def calibrated(
    chosen: ExperimentSet, sweeps: Sweeps, *, clock: Clock, say: Callable[[str], None]
) -> AsyncGenerator[Calibration, None]:
    """The calibration of each engine of an experiment set, as it is measured. Raises BackendError and ConfigError."""
    engines = [*plan_engines(chosen.setups, chosen.setups, clock, say).engines.values()]
    measurable = [engine for engine in engines if engine.policy is None]
    if not measurable:
        raise ConfigError(
            f"{chosen.name}, profile {chosen.profile}: all models are scripted players, which take no time that could "
            "be measured; choose another --profile"
        )
    for engine in engines:
        if engine.policy is not None:
            say(f"{engine.name}: a scripted player, left out")
    plan = fleet_plan(chosen.setups, clock, say, is_dry=False)
    for engine in measurable:
        on_fleet = plan is not None and engine.is_on_fleet
        ready = _on_fleet(engine.name, plan, clock, say) if on_fleet and plan else _alone(engine, clock, say)
        async with ready as up:
            of = up.of if sweeps.gpu is None else up.of._replace(gpu=sweeps.gpu)
            if of.gpu == UNKNOWN:
                say(f"{up.name}: the server does not say its GPU; name it with --gpu, and other GPUs are kept apart")
            say(f"{up.name}: sending requests to {of.engine}")
            found = await calibrate(up.backend, clock, of, slots=sweeps.slots(up.capacity), seconds=sweeps.seconds)
        yield found


@asynccontextmanager
async def _on_fleet(name: str, plan: FleetPlan, clock: Clock, say: Callable[[str], None]) -> AsyncIterator[_Ready]:
    """One lane of a model of a fleet."""
    model = plan.models[name]
    lane = next(lane for lane in plan.lanes if lane.model == name)
    alone = replace(plan, models={name: model}, places=(lane.place,), lanes=(lane,), notes=())
    say(f"{name}: starting {lane.name} on {lane.place.label}")
    async with LocalFleet(alone, clock=clock, say=say, on_event=no_events) as fleet:
        backend = backend_on_fleet(name, model, fleet.model(name), clock=clock, say=say)
        try:
            await backend.start()
            engine = await _version_on_fleet(model, lane)
            of = EngineName(model.model, _gpu(lane.place), engine, model.tensor_parallel_size)
            yield _Ready(name, backend, of, lane.slots)
        finally:
            await backend.close()


@asynccontextmanager
async def _alone(engine: Engine, clock: Clock, say: Callable[[str], None]) -> AsyncIterator[_Ready]:
    """One server of a model that is on no fleet."""
    definition = one_server(engine.definition)
    backend = replace(engine, definition=definition).build(clock, say, can_pull=False)
    try:
        with located(engine.loaded, ("model_definitions", engine.model)):
            await backend.start()
        settings = definition.backend_settings
        urls, parallel = getattr(settings, "base_urls", ()), tensor_parallel_of(definition)
        version = await _served_version(definition.backend, urls[0]) if urls else _version(definition)
        of = EngineName(checkpoint_of(engine.name, definition), _local_gpu(definition, parallel), version, parallel)
        yield _Ready(engine.name, backend, of, backend.capacity)
    finally:
        await backend.close()


def one_server(definition: ModelDefinition) -> ModelDefinition:
    """The same model on one of its servers."""
    settings, update = definition.backend_settings, dict[str, object]()
    if urls := getattr(settings, "base_urls", ()):
        update = {"base_urls": urls[:1], "max_in_flight": max(1, settings.max_in_flight // len(urls))}
    elif getattr(settings, "data_parallel_size", 1) > 1:
        update = {"data_parallel_size": 1}
    return definition.with_settings(settings.model_copy(update=update)) if update else definition


def checkpoint_of(name: str, definition: ModelDefinition) -> str:
    """What the engine of a model serves; the model's own name where its settings do not say."""
    return str(getattr(definition.backend_settings, "model", name))


def tensor_parallel_of(definition: ModelDefinition) -> int:
    """How many GPUs one server of a model spreads over."""
    return int(getattr(definition.backend_settings, "tensor_parallel_size", 1))


def known_calibrations(path: Path, option: str) -> Calibrations:
    """The content of the calibration file that a command's `option` names; nothing where there is no file.

    Raises ConfigError for any other file.
    """
    if not path.exists() and not path.is_symlink():
        return Calibrations()
    try:
        return read_calibrations(path, ())
    except MaterialError as fault:
        raise ConfigError(f"{fault}, or name another file with {option}") from None


def written(known: Calibrations) -> bytes:
    """The content of a calibration file."""
    return (json.dumps(known.model_dump(mode="json"), indent=1) + "\n").encode()


def _gpu(place: Place) -> str:
    """The name of what the engine runs on, such as `2 x NVIDIA H100`; `none` without a GPU."""
    if not place.gpus:
        return "none"
    names = place.gpus[0].name if len(place.gpus) == 1 else f"{len(place.gpus)} x {place.gpus[0].name}"
    return names if place.slice is None else f"{names} {place.slice.profile}"


def _local_gpu(definition: ModelDefinition, count: int) -> str:
    """The name of what an engine in this process runs on."""
    if not definition.spec.holds_memory:
        return UNKNOWN
    gpus = discover()
    if not gpus:
        return "none"
    return gpus[0].name if count == 1 else f"{count} x {gpus[0].name}"


def _version(definition: ModelDefinition) -> str:
    """The engine in this process and its version, as its package says it."""
    if (backend := definition.backend) == "nano":
        return f"nano {__version__}"
    for package in definition.spec.packages if definition.spec.holds_memory else ():
        if package.startswith(backend):
            with suppress(metadata.PackageNotFoundError):
                return f"{backend} {metadata.version(package)}"
    return backend


async def _version_on_fleet(model: FleetModelConfig, lane: LaneSpec) -> str:
    return f"nano {__version__}" if model.engine == "nano" else await _served_version(model.engine, lane.url)


async def _served_version(engine: str, url: str) -> str:
    """The engine and its version, as `/version` says it."""
    client = EngineClient()
    try:
        page = json.loads(await client.get(url.rstrip("/").removesuffix("/v1") + "/version"))
    except (EngineRefusedError, ValueError):
        return engine
    finally:
        await client.close()
    version = page.get("version") if isinstance(page, dict) else None
    return f"{engine} {version}" if isinstance(version, str) else engine
