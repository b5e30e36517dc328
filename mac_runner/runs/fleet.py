"""The fleet of a run: planned from all its models with the backend `fleet`, kept up from its first phase to its last.

The models of a run are named after its engines, so that a grid whose combinations define a model differently has lanes
for each definition. A run plans a fleet before a run directory is touched, so what does not fit costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, StoreError
from mac_runner.fleet.lane import Fleet, OnEvent
from mac_runner.fleet.layout import FleetPlan, LayoutError, local_plan
from mac_runner.problems import Problem, config_error, dotted
from mac_runner.runs.engines import Engine, plan_engines
from mac_runner.runs.setup import Setup, located
from mac_runner.spec import MODELS, FleetConfig
from mac_runner.types import JsonObject

_PlanT = TypeVar("_PlanT")


Opening: TypeAlias = Callable[[Clock, Callable[[str], None], OnEvent], AbstractAsyncContextManager[Fleet]]


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A fleet that fits, not started."""

    slots: int
    """How many requests all its lanes serve at once."""
    open: Opening
    """The fleet, which is there inside the block. A model's lanes are started by `ModelLanes.start`."""


FleetPlanner = Callable[[FleetConfig, Mapping[str, FleetModelConfig], frozenset[str]], PlannedFleet]
"""Lays a fleet out for some models, by name, beside servers whose keys are in some variables.

Raises ConfigError for what does not fit; touches nothing.
"""


def local_fleet(config: FleetConfig, models: Mapping[str, FleetModelConfig], keys: frozenset[str]) -> PlannedFleet:
    """A fleet on the GPUs of this machine."""
    plan = local_plan(config, models, keys)

    def opening(clock: Clock, say: Callable[[str], None], on_event: OnEvent) -> AbstractAsyncContextManager[Fleet]:
        from mac_runner.fleet.supervisor import LocalFleet

        for note in plan.notes:
            say(f"fleet: {note}")
        return LocalFleet(plan, clock=clock, say=say, on_event=on_event)

    return PlannedFleet(sum(lane.slots for lane in plan.lanes), opening)


def plan_fleet(
    setups: Iterable[Setup],
    engines: Iterable[Engine],
    planner: Callable[[FleetConfig, Mapping[str, FleetModelConfig], frozenset[str]], _PlanT],
) -> _PlanT | None:
    """The fleet that experiments need; None where no engine of theirs is on one.

    Raises ConfigError, with places in the file, where experiments ask for different fleets and for what does not fit.
    """
    setups, engines = list(setups), list(engines)
    models = _fleet_models(engines)
    if not models:
        return None
    config = _fleet_config(setups)
    with _fitting(setups, engines):
        return planner(config, models, key_variables(setups))


def fleet_plan(setups: Sequence[Setup], clock: Clock, say: Callable[[str], None], *, is_dry: bool) -> FleetPlan | None:
    """The fleet of experiments on this machine; None where no model is on one. Starts nothing.

    With `is_dry` nothing will be started, so a program or package that is missing here is a note and no error. Raises
    ConfigError as `plan_fleet` does.
    """
    engines = plan_engines(setups, setups, clock, say, is_dry=is_dry).engines.values()
    return plan_fleet(setups, engines, partial(local_plan, is_dry=is_dry))


def _fleet_models(engines: Iterable[Engine]) -> dict[str, FleetModelConfig]:
    """The settings of the engines that are on a fleet, by the engine's name."""
    return {
        engine.name: settings
        for engine in engines
        if isinstance(settings := engine.definition.backend_settings, FleetModelConfig)
    }


def key_variables(setups: Iterable[Setup]) -> frozenset[str]:
    """The variables that experiments name for the keys of their servers."""
    definitions = (definition for setup in setups for definition in setup.experiment.model_definitions.values())
    fields = (field for definition in definitions for field in definition.backend_settings or ())
    return frozenset(value for name, value in fields if name.endswith("_env") and isinstance(value, str))


def _fleet_config(setups: Iterable[Setup]) -> FleetConfig:
    """The section `fleet` of experiments that run together. Raises ConfigError where they differ."""
    found: FleetConfig | None = None
    for setup in setups:
        definitions = setup.experiment.model_definitions.values()
        if not any(isinstance(definition.backend_settings, FleetModelConfig) for definition in definitions):
            continue
        config = setup.experiment.fleet or FleetConfig()
        if found is not None and config != found:
            with located(setup.loaded):
                raise ConfigError.at(
                    ("fleet",),
                    f"the combination {setup.slug} has other settings than those before it, and all combinations of a "
                    "grid share one fleet; give them the same section, or run them one by one",
                )
        found = config
    return found or FleetConfig()


@contextmanager
def _fitting(setups: Sequence[Setup], engines: Sequence[Engine]) -> Iterator[None]:
    """Add the places in the file to what does not fit, and to any other ConfigError that is raised inside the block."""
    with located(setups[0].loaded):
        try:
            yield
        except LayoutError as error:
            lines = dict.fromkeys(_placed(problem, setups[0], engines) for problem in error.problems)
            raise config_error(lines) from error


def _placed(problem: Problem, setup: Setup, engines: Sequence[Engine]) -> str:
    """A problem with its place. Its path has an engine's name where the file has that of a model."""
    loaded, path = setup.loaded, problem.path
    if path[0] == MODELS and (engine := next((one for one in engines if one.name == path[1]), None)) is not None:
        loaded, path = engine.loaded, (MODELS, engine.model, *path[2:])
    return f"{loaded.locate(path)}: {dotted(path)}: {problem.text}"


@asynccontextmanager
async def opened(
    planned: PlannedFleet | None, log: OnEvent, *, clock: Clock, say: Callable[[str], None]
) -> AsyncIterator[Fleet | None]:
    """The fleet of a run inside the block, with its events in the run's log; None where nothing is planned."""
    if planned is None:
        yield None
        return

    def record(name: str, fields: JsonObject) -> None:
        with suppress(StoreError):  # The log's failure stops the run by itself; the fleet is closed in good order.
            log(name, fields)

    async with planned.open(clock, say, record) as fleet:
        yield fleet
