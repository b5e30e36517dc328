"""The engines that experiments need, which of them are shared, and how many connections fit.

In a grid, two models are one engine when their resolved definitions are equal, whatever the combinations call them; a
scripted player is also identified by the program that plays. An engine is named after the first model that it serves,
with a digest of its definition behind the name where several engines would have it. The models of a single experiment
are separate engines.

As few engines as possible that hold their model in this machine's memory are up at once: combinations that need the
same ones form a phase, and a phase's engines close before those of the next phase start. All other combinations run in
the first phase.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mac_runner import descriptors
from mac_runner.backends import Backend
from mac_runner.backends.factory import build_backend
from mac_runner.backends.fleet.settings import FleetModelConfig, ModelLanes
from mac_runner.backends.own import own_player
from mac_runner.clock import Clock
from mac_runner.config import Loaded, ModelDefinition
from mac_runner.environments.base import Environment, Policy
from mac_runner.errors import ConfigError, MissingPackageError, ShortageError
from mac_runner.fleet.lane import Fleet
from mac_runner.plugins import loaded_plugin
from mac_runner.runs.setup import Refusals, Setup, located
from mac_runner.spec import AgentDefinition

DESCRIPTORS_MIN: Final = 24
"""The fewest file descriptors that a run can work with."""


class _Key(NamedTuple):
    """What makes two models the same engine."""

    definition: str
    policy: Policy | None
    model: str | None
    """Set where engines are not shared."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine and the agents that it speaks for."""

    name: str
    model: str
    """What the first model that it serves is called in `loaded`."""
    loaded: Loaded
    definition: ModelDefinition
    policy: Policy | None
    agents: dict[str, AgentDefinition] = field(default_factory=dict)

    @property
    def holds_memory(self) -> bool:
        """Whether it takes this machine's memory."""
        return self.definition.spec.holds_memory

    @property
    def is_on_fleet(self) -> bool:
        """Whether a fleet serves it."""
        return isinstance(self.definition.backend_settings, FleetModelConfig)

    def build(self, clock: Clock, say: Callable[[str], None], *, can_pull: bool, fleet: Fleet | None = None) -> Backend:
        """The backend, not started. Its lines for `say` begin with its name where the model's name is ambiguous."""

        def policy_of(_name: str) -> Policy:
            assert self.policy is not None, "only a scripted model asks for a policy, and it has one"
            return self.policy

        return build_backend(
            self.model,
            self.definition,
            agents=tuple(agent.model_copy(update={"model": self.model}) for agent in self.agents.values()),
            policy_of=policy_of,
            clock=clock,
            say=say if self.name == self.model else lambda line: say(f"{self.name}: {line}"),
            can_pull=can_pull,
            lanes=None if fleet is None or not self.is_on_fleet else fleet.model(self.name),
        )


class Phase(NamedTuple):
    """Experiments that run together, and the engines that are up meanwhile."""

    setups: tuple[Setup, ...]
    engines: tuple[Engine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The engines of some experiments."""

    engines: Mapping[str, Engine]
    served: Mapping[str, Mapping[str, str]]
    """For each experiment, by slug, the engine of each of its models."""

    def phases(self, setups: Iterable[Setup]) -> list[Phase]:
        """The experiments in the order in which they run."""
        groups: dict[frozenset[str], list[Setup]] = {}
        for setup in setups:
            names = frozenset(name for name in self.served[setup.slug].values() if self.engines[name].holds_memory)
            groups.setdefault(names, []).append(setup)
        free = groups.pop(frozenset(), [])
        joined = list(groups.values()) or [[]]
        joined[0] += free
        return [Phase(tuple(group), self._of(group)) for group in joined if group]

    def _of(self, setups: Iterable[Setup]) -> tuple[Engine, ...]:
        names = dict.fromkeys(name for setup in setups for name in self.served[setup.slug].values())
        return tuple(self.engines[name] for name in names)


def plan_engines(
    setups: Sequence[Setup],
    of_all: Sequence[Setup],
    clock: Clock,
    say: Callable[[str], None],
    *,
    can_pull: bool = False,
    is_dry: bool = False,
) -> EnginePlan:
    """The engines of `setups`. Each has the same name whichever of the experiments `of_all` are left to play.

    With `is_dry` nothing will be played, so a package that is missing here is a line for `say` and no error.
    Raises ConfigError for settings that an engine cannot honour, with their places in the file.
    """
    found: dict[_Key, Engine] = {}
    served: dict[str, dict[str, _Key]] = {}
    checked: set[tuple[_Key, str]] = set()
    missing: dict[str, None] = {}
    refusals = Refusals(len(of_all))
    numbers = {setup.slug: number for number, setup in enumerate(of_all, start=1)}
    for setup in setups:
        environment = setup.environment()
        keys = served[setup.slug] = {}
        for name, definition in setup.experiment.model_definitions.items():
            agents = {a.model_dump_json(): a for a in setup.experiment.agent_definitions if a.model == name}
            key = _Key(definition.model_dump_json(), None, name if setup.combination is None else None)
            with refusals.of(numbers[setup.slug]):
                if (player := definition.spec.policy(definition.backend_settings)) is not None:
                    key = key._replace(policy=policy_of(setup, environment, name, player))
                if (key, "".join(agents)) not in checked:
                    # Built only to check it with the settings of this experiment and its places in the file.
                    checked.add((key, "".join(agents)))
                    try:
                        backend_of(setup, environment, name, definition, clock, say, can_pull=can_pull)
                    except ConfigError as error:
                        if not (is_dry and isinstance(error.__cause__, MissingPackageError)):
                            raise
                        missing[str(error)] = None
            keys[name] = key
            engine = found.setdefault(
                key, Engine(name=name, model=name, loaded=setup.loaded, definition=definition, policy=key.policy)
            )
            engine.agents |= agents
    refusals.raise_if_any()
    for line in missing:
        say(f"note: {line}; here the experiment is only described")
    _name_apart(found.values(), of_all)
    return EnginePlan(
        engines={engine.name: engine for engine in found.values()},
        served={slug: {name: found[key].name for name, key in keys.items()} for slug, keys in served.items()},
    )


def _name_apart(engines: Iterable[Engine], setups: Iterable[Setup]) -> None:
    """Append a digest to the names of engines whose models share a name; no model's name has a `#`."""
    definitions: dict[str, set[str]] = {}
    for setup in setups:
        for name, definition in setup.experiment.model_definitions.items():
            definitions.setdefault(name, set()).add(definition.model_dump_json())
    named: Counter[str] = Counter()
    for engine in engines:
        if len(definitions[engine.name]) > 1:
            digest = hashlib.blake2b(engine.definition.model_dump_json().encode(), digest_size=2).hexdigest()
            engine.name = f"{engine.name}#{digest}"
        named[engine.name] += 1
        if named[engine.name] > 1:
            # One definition whose policy name means another program in another environment.
            engine.name = f"{engine.name}#{named[engine.name]}"


def backend_of(
    setup: Setup,
    environment: Environment,
    name: str,
    definition: ModelDefinition,
    clock: Clock,
    say: Callable[[str], None],
    *,
    can_pull: bool = False,
    lanes: ModelLanes | None = None,
) -> Backend:
    """The backend of one model of an experiment, not started. Raises ConfigError with the place in the file.

    A model on a fleet can be started with its `lanes` only.
    """
    with located(setup.loaded, ("model_definitions", name)):
        return build_backend(
            name,
            definition,
            agents=setup.experiment.agent_definitions,
            policy_of=lambda policy: policy_of(setup, environment, name, policy),
            clock=clock,
            say=say,
            can_pull=can_pull,
            lanes=lanes,
        )


def policy_of(setup: Setup, environment: Environment, model: str, name: str) -> Policy:
    """The scripted player `name`: the environment's, or one that the file names.

    Raises ConfigError with the place that names it.
    """
    key = setup.experiment.model_definitions[model].settings_key
    code = setup.experiment.plugins.get(name)
    plugin = None if code is None else loaded_plugin("policies", name, code.sha256)
    with located(setup.loaded, ("model_definitions", model, key, "policy")):
        if plugin is None:
            return environment.policy(name)
        if ":" in name:
            return own_player(plugin)
        with suppress(ConfigError):  # The environment's own comes before an installed one.
            return environment.policy(name)
        return own_player(plugin)


class Bound(NamedTuple):
    """How many requests may be in flight; None for no bound."""

    concurrency: int | None
    notice: str | None = None
    """What to print where that is fewer than asked for."""


def connections_of(definitions: Iterable[ModelDefinition]) -> int:
    """How many connections these models take with all their requests in flight."""
    return sum(definition.spec.connections(definition.backend_settings) for definition in definitions)


def bound(limit: int | None, *, wanted: int, concurrency: int | None, runs_open: int = 1) -> Bound:
    """How many of the `wanted` connections fit into `limit` file descriptors.

    At most `concurrency` of them are used at once, and `runs_open` run directories are open beside them.
    """
    wanted = wanted if concurrency is None else min(wanted, concurrency)
    if limit is None or wanted <= (room := descriptors.connections_within(limit, runs_open)):
        return Bound(concurrency)
    return Bound(
        room,
        f"{limit} file descriptors leave room for {room} connections and not for {wanted}: at most {room} requests "
        f"are in flight; for all {wanted} raise the hard limit to {wanted + descriptors.kept(runs_open)} before the "
        "run (`ulimit -n`)",
    )


def concurrency_within_descriptors(
    say: Callable[[str], None], *, wanted: int, concurrency: int | None, runs_open: int = 1, is_raising: bool = True
) -> int | None:
    """How many requests may be in flight under the descriptor limit of this process, which is raised if `is_raising`.

    Raises ShortageError where there is no room for a single one.
    """
    limit = descriptors.raise_limit() if is_raising else descriptors.limit()
    if limit is not None and limit < DESCRIPTORS_MIN:
        raise ShortageError(
            f"this process may have {limit} file descriptors, and a run needs {DESCRIPTORS_MIN} at least; raise the "
            "limit (`ulimit -n`), and run the same command again"
        )
    found = bound(limit, wanted=wanted, concurrency=concurrency, runs_open=runs_open)
    if found.notice is not None:
        say(found.notice)
    return found.concurrency
