"""Calibrates the models of a fleet, one after the other, each on one of its lanes with nothing beside it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

from mac_runner import __version__
from mac_runner.backends.factory import backend_on_fleet
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.clock import Clock
from mac_runner.config.materials import MaterialError, read_calibrations
from mac_runner.errors import ConfigError
from mac_runner.fleet.layout import FleetPlan
from mac_runner.fleet.model import LaneSpec, Place, no_events
from mac_runner.fleet.probe import EngineClient, EngineRefusedError
from mac_runner.fleet.supervisor import LocalFleet
from mac_runner.latency import Calibration, Calibrations
from mac_runner.runs.sweeps import calibrate


async def calibrated(
    plan: FleetPlan, seconds: float, *, clock: Clock, say: Callable[[str], None]
) -> AsyncGenerator[Calibration, None]:
    """The calibration of each model, as it is measured by sweeps of so many seconds.

    Raises BackendError and ConfigError.
    """
    for name, model in plan.models.items():
        lane = next(lane for lane in plan.lanes if lane.model == name)
        alone = replace(plan, models={name: model}, places=(lane.place,), lanes=(lane,), notes=())
        say(f"{name}: starting {lane.name} on {lane.place.label}")
        async with LocalFleet(alone, clock=clock, say=say, on_event=no_events) as fleet:
            backend = backend_on_fleet(name, model, fleet.model(name), clock=clock, say=say)
            try:
                await backend.start()
                engine = await _version(model, lane)
                say(f"{name}: sending requests to {engine}")
                found = await calibrate(
                    backend,
                    clock,
                    model=model.model,
                    gpu=_gpu(lane.place),
                    engine=engine,
                    slots=lane.slots,
                    seconds=seconds,
                )
            finally:
                await backend.close()
        yield found


def known_calibrations(path: Path) -> Calibrations:
    """The content of a calibration file; nothing where there is no file. Raises ConfigError for any other file."""
    if not path.exists() and not path.is_symlink():
        return Calibrations()
    try:
        return read_calibrations(path, ())
    except MaterialError as fault:
        raise ConfigError(f"{fault}, or name another file with --out") from None


def written(known: Calibrations) -> bytes:
    """The content of a calibration file."""
    return (json.dumps(known.model_dump(mode="json"), indent=1) + "\n").encode()


def _gpu(place: Place) -> str:
    """The name of what the engine runs on, such as `2 x NVIDIA H100`; `none` without a GPU."""
    if not place.gpus:
        return "none"
    names = place.gpus[0].name if len(place.gpus) == 1 else f"{len(place.gpus)} x {place.gpus[0].name}"
    return names if place.slice is None else f"{names} {place.slice.profile}"


async def _version(model: FleetModelConfig, lane: LaneSpec) -> str:
    """The engine and its version, as `/version` says it."""
    if model.engine == "nano":
        return f"nano {__version__}"
    client = EngineClient()
    try:
        page = json.loads(await client.get(lane.url.removesuffix("/v1") + "/version"))
    except (EngineRefusedError, ValueError):
        return model.engine
    finally:
        await client.close()
    version = page.get("version") if isinstance(page, dict) else None
    return f"{model.engine} {version}" if isinstance(version, str) else model.engine
