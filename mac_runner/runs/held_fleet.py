"""Fleets that outlive runs: `mac-run fleet up` holds one, and runs with `--fleet` use it.

`fleet.json` describes a held fleet, and a lock beside it says whether the holder lives: the kernel drops the lock with
the process. So a file that a killed holder left is replaced, and that of a living one is not.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.clock import Clock, iso
from mac_runner.errors import ConfigError, EngineDeadError, RunLockedError
from mac_runner.fleet.held import AttachedFleet, FleetHost, HeldFleet, HeldModel, Holdable, read_held
from mac_runner.fleet.lane import OnEvent
from mac_runner.runs import event_loop
from mac_runner.runs.fleet import FleetPlanner, PlannedFleet
from mac_runner.secrecy import command_of
from mac_runner.spec import FleetConfig
from mac_runner.store import Disk
from mac_runner.store.disk import PrivateSystem
from mac_runner.store.lock import only_holder
from mac_runner.store.machine import Machine
from mac_runner.types import JsonObject

OpenFleet: TypeAlias = Callable[[OnEvent], AbstractAsyncContextManager[Holdable]]
"""Opens the fleet that is to be held, with a receiver for its events."""


def lock_of(path: Path) -> Path:
    """The lock file beside the file of a fleet."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def claimed(path: Path) -> Iterator[Disk]:
    """Be the only holder of a fleet with this file, which is removed at the end.

    Raises RunLockedError while another one lives, and ConfigError where something else is at `path`.
    """
    disk = Disk(PrivateSystem())
    if not disk.is_directory(path.parent):
        raise ConfigError(f"--out: there is no directory {path.parent} for {path.name}; make it first")
    with only_holder(disk, lock_of(path), lambda: _taken(path)):
        if disk.exists(path):
            try:
                read_held(path)
            except ConfigError as fault:
                raise ConfigError(f"--out: {fault.words}; nothing was changed. Choose another file") from fault
        try:
            yield disk
        finally:
            disk.remove(path)


def is_held(path: Path) -> bool:
    """Whether the process that wrote this file of a fleet lives, on this machine."""
    try:
        with only_holder(Disk(), lock_of(path), str):
            return False
    except RunLockedError:
        return True


def _taken(path: Path) -> str:
    try:
        held = read_held(path)
    except ConfigError:
        return f"another process is starting a fleet with {path}; wait for it, or choose another file with --out"
    return (
        f"{path} is the file of a fleet that runs: pid {held.pid} since {held.started_at} ({held.command}); use it "
        f"with mac-run FILE --fleet {path}, end it with mac-run fleet down {path}, or choose another file with --out"
    )


async def hold(
    models: Mapping[str, FleetModelConfig],
    open_fleet: OpenFleet,
    path: Path,
    *,
    clock: Clock,
    stop: asyncio.Event,
    on_begin: Callable[[], None],
    on_event: OnEvent,
    on_up: Callable[[HeldFleet], None],
) -> None:
    """Start the fleet, serve it to others, and return when `stop` is set and all of it has ended.

    `on_begin` is called when `path` is there, and `on_up` when each model has a lane that is up. Raises
    RunLockedError, and EngineDeadError when a model has no lane for good at the start, or all have lost theirs later.
    """
    with claimed(path) as disk:
        hosts: list[FleetHost] = []

        def note(name: str, fields: JsonObject) -> None:
            on_event(name, fields)
            for host in hosts:
                host.note(name, fields)

        async with open_fleet(note) as fleet:
            token = secrets.token_urlsafe()
            async with FleetHost(fleet, tuple(models), token, stop.set) as host:
                hosts.append(host)
                held = HeldFleet(
                    pid=os.getpid(),
                    host=Machine().host,
                    started_at=iso(clock.utc_now()),
                    command=command_of(sys.argv),
                    control=f"http://127.0.0.1:{host.port}",
                    token=token,
                    models={name: HeldModel.of(config, fleet.model(name)) for name, config in models.items()},
                )
                disk.write_atomic(path, [held.encoded()])
                on_begin()
                await event_loop.until_stopped(stop, _serve(fleet, models, lambda: on_up(held)))


async def _serve(fleet: Holdable, models: Iterable[str], on_up: Callable[[], None]) -> None:
    """Start all models, then wait until none has a lane left. Raises EngineDeadError."""
    lanes = {name: fleet.model(name) for name in models}
    changed = asyncio.Event()
    for each in lanes.values():
        each.on_change(changed.set)
    starts = [asyncio.ensure_future(each.start()) for each in lanes.values()]
    try:
        await asyncio.gather(*starts)
    finally:
        for start in starts:
            start.cancel()
        await asyncio.wait(starts)
    on_up()
    while not all(each.lost is not None for each in lanes.values()):
        await changed.wait()
        changed.clear()
    raise EngineDeadError("; ".join(f"{name}: {each.lost}" for name, each in lanes.items()))


def attached_to(path: Path) -> FleetPlanner:
    """A planner that takes the lanes of a held fleet; the section `fleet` of the experiment has no say in it."""

    def plan(_config: FleetConfig, models: Mapping[str, FleetModelConfig], _keys: frozenset[str]) -> PlannedFleet:
        held = read_held(path)
        served = {held.serving(name, config) for name, config in models.items()}
        return PlannedFleet(
            sum(held.models[name].slots for name in served),
            lambda clock, _say, on_event: AttachedFleet(path, models, clock=clock, on_event=on_event),
        )

    return plan
