"""`mac-run calibrate` and `fleet`: how long engines take, and a fleet of them that outlives runs."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

import click

from mac_runner.cli.options import OfExperiment, Quiet, Varying, Verb, argument, commands, option, switch
from mac_runner.cli.process import Exit, print_lines, report, say, stop_on_signals
from mac_runner.clock import SystemClock, pause
from mac_runner.errors import ConfigError
from mac_runner.fleet.engine_process import launch_of
from mac_runner.fleet.held import FleetClient, FleetGoneError, FleetState, HeldFleet, Holdable, read_held
from mac_runner.fleet.lane import LaneSpec, LaneState, LaneStatus, OnEvent
from mac_runner.fleet.layout import FleetPlan, gib
from mac_runner.fleet.supervisor import LocalFleet
from mac_runner.latency import Calibration, CalibrationChoice
from mac_runner.planning.observed import known_calibrations
from mac_runner.planning.sweeps import Sweeps, calibrated, server_experiment, written
from mac_runner.printable import counted, printable
from mac_runner.reports import write_tables
from mac_runner.results import Table
from mac_runner.runs import event_loop
from mac_runner.runs.fleet import fleet_plan
from mac_runner.runs.held_fleet import hold, is_held
from mac_runner.runs.setup import ExperimentSet, RunRequest, set_up
from mac_runner.store import Disk
from mac_runner.types import JsonObject

T = TypeVar("T")

DOWN_S_MAX: Final = 30.0
"""So long `down` waits for the end of a fleet."""
_FLEET_FILE: Final = Path("fleet.json")
_LOOK_S: Final = 0.1
_SECRET: Final = "..."  # noqa: S105 - what is printed in its place
QUANTUM: Final = 16
"""The quantum of the `kernel_ms` that is printed."""
BAD_FIT: Final = 0.1
"""From this median error on, a fit is called bad."""
_ENDING: Final = "ending the engines; once more leaves at once"


@dataclass(frozen=True, kw_only=True)
class Up(OfExperiment, Quiet):
    """Start the fleet of EXPERIMENT and hold it until Ctrl-C, SIGTERM or `mac-run fleet down`.

    Engines that end are started again. FLEET is readable by this user alone, and removed at the end.

    Exit codes: 0 ended when asked, 2 bad input, 3 an engine did not start, or all have ended for good, 4 storage
    failed, 5 another process holds a fleet with this file.
    """

    out: Path = option("The file that describes the fleet [fleet.json].", "FLEET", _FLEET_FILE)
    logs: Path | None = option("Where the engines' logs go.", "DIR")

    def work(self) -> None:
        clock = SystemClock()
        chosen = set_up(self.request())
        plan = fleet_plan(chosen.setups, clock, self.say, is_dry=False)
        if plan is None:
            raise ConfigError(f"{self.file}: no model has `backend: fleet`, so there is no fleet to start")
        if self.logs is not None:
            Disk().make_directory(self.logs)
        for note in plan.notes:
            self.say(f"fleet: {note}")

        def open_fleet(on_event: OnEvent) -> AbstractAsyncContextManager[Holdable]:
            return LocalFleet(plan, clock=clock, say=say, on_event=on_event, logs=self.logs)

        def on_event(name: str, fields: JsonObject) -> None:
            if name == "EVENT_LANE_UP":
                self.say(f"{fields.get('lane')} is up on {fields.get('place')}")

        async def main() -> None:
            stop = asyncio.Event()
            with stop_on_signals(stop, say, words=_ENDING):
                await hold(
                    plan.models,
                    open_fleet,
                    self.out,
                    clock=clock,
                    stop=stop,
                    on_begin=lambda: self.say(
                        f"mac-run fleet status {self.out} shows this fleet, also while it starts"
                    ),
                    on_event=on_event,
                    on_up=lambda held: None if self.quiet else _print_addresses(held, self.out),
                )

        event_loop.run(main())
        self.say("the fleet has ended")


def _print_addresses(held: HeldFleet, out: Path) -> None:
    """How to use a fleet that is up."""
    with report() as stream:
        for name, model in held.models.items():
            if model.takes_turns:
                say(f"{name} takes turns with other models: only runs with --fleet can use it")
                continue
            stream.write(f"{printable(name)}:\n")
            settings = {"model": model.model, "server": model.dialect, "base_urls": list(model.base_urls)}
            stream.write(f"  backend: openai\n  openai_config: {printable(json.dumps(settings))}\n")
    say(f"up: play with mac-run FILE --fleet {out}; mac-run fleet down {out} ends it")


@dataclass(frozen=True, kw_only=True)
class _OfFleet(Verb):
    file: Path = argument("[FLEET]", required=False, default=_FLEET_FILE)


@dataclass(frozen=True, kw_only=True)
class Status(_OfFleet):
    """Print the lanes of the fleet that FLEET describes [fleet.json].

    Exit codes: 0 printed, 2 there is no such fleet, 3 it has ended.
    """

    json: bool = switch("For programs.")

    def work(self) -> None:
        held = read_held(self.file)
        state = _asked(self.file, held, lambda client: client.state())
        with report() as stream:
            if self.json:
                stream.write(json.dumps(status_json(self.file, held, state), indent=2) + "\n")
            else:
                up = sum(lane.state is LaneState.UP for lane in state.lanes)
                title = f"{self.file}: pid {held.pid} since {held.started_at}, {up} of {len(state.lanes)} lanes up"
                numbers = ("in flight", "tokens/s", "cached", "deaths", "restarts", "port")
                table = Table(title, ("lane", "state", "place"), numbers, [*map(_row, state.lanes)])
                write_tables([table], stream)
                for lane in state.lanes:
                    if lane.fault:
                        log = f" (log: {lane.log})" if lane.log else ""
                        stream.write(printable(f"{lane.name}: {lane.fault}{log}") + "\n")


@dataclass(frozen=True, kw_only=True)
class Drain(Verb):
    """Take LANE out of service: it gets no new requests, and ends after those in flight.

    Other lanes take over its conversations. It stays down until --undo.

    Exit codes: 0 done, 2 there is no such fleet or lane, 3 the fleet has ended.
    """

    lane: str = argument("LANE")
    file: Path = argument("[FLEET]", required=False, default=_FLEET_FILE)
    undo: bool = switch("Start it again.")

    def work(self) -> None:
        held = read_held(self.file)
        if self.undo:
            _asked(self.file, held, lambda client: client.post("/undrain", lane=self.lane))
            say(f"{self.lane} is being started; mac-run fleet status {self.file} shows when it is up")
            return
        if any(known.name == self.lane for known in _asked(self.file, held, lambda client: client.state()).lanes):
            say(f"{self.lane} gets no new requests; waiting for those in flight")
        _asked(self.file, held, lambda client: client.post("/drain", lane=self.lane))
        say(f"{self.lane} has ended; mac-run fleet drain {self.lane} {self.file} --undo starts it again")


@dataclass(frozen=True, kw_only=True)
class Down(_OfFleet):
    """End the fleet that FLEET describes [fleet.json], and wait until its engines have ended.

    Exit codes: 0 it has ended, 1 it has not ended in time, 2 there is no such fleet.
    """

    def work(self) -> Exit:
        held = read_held(self.file)
        try:
            _asked(self.file, held, lambda client: client.post("/down"))
        except FleetGoneError as gone:
            if is_held(self.file):
                say(f"{gone}; its process lives and does not answer: end it with kill {held.pid}")
                return Exit.FAILURES
            say(f"the fleet of {self.file} has ended already: pid {held.pid} is not there any more")
            return Exit.OK
        for _ in range(round(DOWN_S_MAX / _LOOK_S)):
            if not is_held(self.file):
                say(f"the fleet of {self.file} has ended")
                return Exit.OK
            pause(_LOOK_S)
        say(f"the fleet of {self.file} has not ended within {DOWN_S_MAX:.0f} s; end it with kill {held.pid}")
        return Exit.FAILURES


def status_json(path: Path, held: HeldFleet, state: FleetState) -> JsonObject:
    """All that is known of a fleet, for programs; without its token."""
    known = asdict(held)
    for key in ("token", "format"):
        del known[key]
    return {
        "file": str(path),
        **known,
        "lanes": [{**asdict(lane), "url": f"http://127.0.0.1:{lane.port}/v1"} for lane in state.lanes],
        "lost": {name: model.lost for name, model in state.models.items()},
    }


def _row(lane: LaneStatus) -> tuple[str, ...]:
    return (
        *(lane.name, lane.state.value, lane.place, f"{lane.in_flight}/{lane.slots}"),
        *(_shown(lane.tokens_per_s, ",.0f"), _shown(lane.prefix_hits, ".0%")),
        *(str(lane.deaths), str(lane.restarts), _shown(lane.port, "")),
    )


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _asked(path: Path, held: HeldFleet, ask: Callable[[FleetClient], Coroutine[object, object, T]]) -> T:
    """What the holder answers. Raises FleetGoneError where it is not there."""

    async def main() -> T:
        async with FleetClient(held, path) as client:
            return await ask(client)

    return event_loop.run(main())


def show_lanes(chosen: ExperimentSet) -> None:
    """Print the lanes of the experiment's models. Raises ConfigError with all that does not fit."""
    plan = fleet_plan(chosen.setups, SystemClock(), say, is_dry=True)
    if plan is None:
        raise ConfigError(
            f"{chosen.name}, profile {chosen.profile}: no model has the backend 'fleet'; choose another --profile"
        )
    print_lanes(plan)
    print_lines(*map(printable, _below(plan)))


def print_lanes(plan: FleetPlan) -> None:
    """Print the table of planned lanes."""
    rows = [
        (
            *(lane.name, lane.place.label, plan.models[lane.model].engine, lane.checkpoint),
            *(_memory(lane), str(lane.slots), str(lane.port)),
        )
        for lane in plan.lanes
    ]
    with report() as stream:
        write_tables([Table("lanes", ("lane", "place", "engine", "model"), ("memory", "slots", "port"), rows)], stream)
    notes = [*plan.notes]
    if plan.config.first_port is None:
        notes.append("the ports are free now, and a run may choose others; fleet.first_port fixes them")
    print_lines(*(printable(f"note: {note}") for note in notes))


def _memory(lane: LaneSpec) -> str:
    """The lane's share of the memory of its place, while it is resident."""
    memory = lane.place.memory_mib
    if memory is None:
        return "-"
    each = f"{lane.memory_share:.2f} = {gib(lane.memory_share * memory)} GiB"
    return each if len(lane.place.gpus) == 1 else f"{each} of each"


def _below(plan: FleetPlan) -> Iterator[str]:
    yield ""
    found = [(plan.slots, "requests"), (len(plan.lanes), "lanes"), (len(plan.places), "places")]
    requests, lanes, places = (counted(n, nouns) for n, nouns in found)
    yield f"{requests} at once on {lanes} and {places}"
    yield ""
    for lane in plan.lanes:
        launch = launch_of(lane, plan.models[lane.model], admin_key=_SECRET)
        environment = [f"{name}={shlex.quote(value)}" for name, value in launch.environment.items()]
        yield " ".join([*environment, shlex.join(launch.argv)])


@dataclass(frozen=True, kw_only=True)
class Calibrate(Varying):
    """Measure how long the engines of EXPERIMENT take, and keep it for `mac-run plan` and for `latency`.

    One engine after the other is started and sent requests, 1, 4, 16 and N at a time. Of several servers of a model the
    first is measured. FILE keeps what it has of other models, GPUs and versions of engines.

    Exit codes: 0 all were measured, 2 bad input, 3 an engine did not start, or a signal ended it.
    """

    file: Path | None = argument("[EXPERIMENT]", required=False)
    base_url: str | None = option("Without EXPERIMENT: a server of the OpenAI protocol.", "URL")
    model: str | None = option("With --base-url: the model's name there.", "NAME")
    gpu: str | None = option("The name of the GPU, where the engine does not say it.", "NAME")
    in_flight: int | None = option(
        "Requests at once in the last sweep [as many as the engine serves, at most 256].",
        "N",
    )
    seconds: float = option(
        "How long each of the sweeps takes; longer on a slow engine [5].",
        "S",
        5.0,
        type=click.FloatRange(min=0.1, max=3600),
    )
    out: Path = option("The file that keeps what was measured [calibration.json].", "FILE", Path("calibration.json"))

    def work(self) -> Exit:
        """Measure each engine of the experiment, write `out`, and print what was found."""
        chosen = set_up(self._measured())
        known_calibrations(self.out, "--out")  # A file that cannot be used is refused before an engine starts.
        found: list[Calibration] = []
        sweeps = Sweeps(seconds=self.seconds, in_flight=self.in_flight, gpu=self.gpu)
        was_stopped = event_loop.run(_measure(chosen, sweeps, self.out, found))
        with report() as stream:
            write_tables([calibrations_table(found)], stream)
        for one in found:
            if one.error >= BAD_FIT:
                say(
                    f"{one.model}: half of the replies are off by {one.error:.0%} or more, so a forecast will be too; "
                    "measure for longer (--seconds), on an engine and a machine that serve nothing else"
                )
        if found:
            say(f"{self.out}: plan with `mac-run plan FILE --calibration {self.out}`")
        return Exit.INTERRUPTED if was_stopped else Exit.OK

    def _measured(self) -> RunRequest:
        """The experiment, or one of the server that was named."""
        if (self.file is None) == (self.base_url is None):
            raise ConfigError("name an EXPERIMENT, or a server with --base-url and --model")
        if (self.base_url is None) != (self.model is None):
            raise ConfigError("--base-url and --model belong together: give both, or an EXPERIMENT")
        if self.file is not None:
            return self.request_for(self.file)
        if self.given("profile", "overrides"):
            raise ConfigError("--profile and --set are about an EXPERIMENT: leave them out beside --base-url")
        return RunRequest(file=server_experiment(self.base_url or "", self.model or ""))


async def _measure(chosen: ExperimentSet, sweeps: Sweeps, out: Path, found: list[Calibration]) -> bool:
    """Whether a signal ended it. What was measured until then is in the file."""
    stop, disk = asyncio.Event(), Disk()

    async def each() -> None:
        async with aclosing(calibrated(chosen, sweeps, clock=SystemClock(), say=say)) as engines:
            async for one in engines:
                disk.write_atomic(out, [written(known_calibrations(out, "--out").with_one(one))])
                found.append(one)

    with stop_on_signals(stop, say, words=_ENDING):
        return await event_loop.until_stopped(stop, each())


def calibrations_table(found: list[Calibration]) -> Table:
    """One row for each engine."""
    choice = CalibrationChoice(file="calibration.json")
    return Table(
        "calibration",
        ("model", "gpu", "engine"),
        ("step ms", "token ms", "prompt token ms", "context token ms", "prefill_ms", "kernel_ms", "error"),
        [
            (
                *(one.model, one.gpu, one.engine),
                *(f"{value:.4g}" for value in one.steps.model_dump().values()),
                str(one.steps.prefill_ms(choice.prompt_tokens)),
                str(one.steps.kernel_ms(QUANTUM, choice.in_flight, choice.context_tokens)),
                f"{one.error:.1%}",
            )
            for one in found
        ],
    )


VERBS: Final = {
    **commands(calibrate=Calibrate),
    "fleet": click.Group(
        "fleet",
        commands(up=Up, status=Status, drain=Drain, down=Down),
        no_args_is_help=True,
        help="""Start, watch and end engines on the GPUs of this machine.

        `mac-run FILE` does all of it by itself. A fleet that is held outlives runs, so several of them share engines
        that took long to load.
        """,
    ),
}
