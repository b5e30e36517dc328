"""Experiment file and flags to everything a run consists of except its engines; touches nothing.

A command plays an `ExperimentSet`: the combinations of a grid, or one experiment, which is a set of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from mac_runner.backends.base import held
from mac_runner.config import (
    Combination,
    Experiment,
    Grid,
    Loaded,
    Override,
    Written,
    as_begun,
    decoding_of,
    in_words,
    load,
    renamed,
    slug_beside,
)
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.errors import ConfigError, ConversationError, RunDirectoryError, boundary
from mac_runner.paired import compared_figures
from mac_runner.plan import AutoShard, Plan, Shard, plan_of
from mac_runner.problems import clipped, config_error, dotted, suggestion
from mac_runner.registry import backend_specs, results_specs
from mac_runner.results import Declared
from mac_runner.scheduler import Restoration
from mac_runner.section import KeyPath
from mac_runner.spec import ReportConfig
from mac_runner.store import Disk, GridRecord, Invocation, grid_entries, read_grid
from mac_runner.store.fork import is_fork
from mac_runner.store.identity import read_config
from mac_runner.store.layout import Layout, Lease
from mac_runner.store.mirror import NOT_HERE, file_system, is_url
from mac_runner.types import JsonObject, JsonValue, Lineup, Prompt, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a user asks to run."""

    file: Path | Written
    profile: str | None = None
    overrides: tuple[str | Override, ...] = ()
    """`KEY=VALUE`, as `--set` takes them, or values written in Python."""
    seed: str | None = None
    limit: int | None = None
    """Play only the first so many conversations of each experiment."""
    shard: Shard | AutoShard | None = None
    """Play only this part of them, or the parts that no other worker has claimed."""
    out: Path | None = None
    mirror: str | None = None
    """A URL to which each run directory is copied once it has ended."""
    can_pull: bool = False
    """Engines may download models that they do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One checked experiment and the directory it runs in."""

    loaded: Loaded
    directory: Path
    environment: Callable[[], Environment]
    """Builds the environment. A grid of hundreds builds each one when its turn comes."""
    lineup: Lineup | None
    transcript_bytes_min: int
    grid: Path | None = None
    """The directory of the grid that it is a combination of, where `directory` names it."""
    combination: Combination | None = None
    """The experiment's place in a grid."""
    limit: int | None = None
    shard: Shard | None = None
    """The part of the experiment that the directory is for."""
    lease: Lease | None = None
    """A worker's claim on a shard of the run in the directory."""
    only: frozenset[str] | None = None
    """Play only the tasks with these ids."""
    material: Callable[[str], JsonObject | None] | None = None
    """Gives a task its question, where the experiment's files are not read again."""
    plan: Plan | None = None
    """The tasks of a fork, which no experiment plans."""

    @property
    def experiment(self) -> Experiment:
        return self.loaded.experiment

    @property
    def name(self) -> str:
        return self.experiment.experiment_metadata.experiment_name

    @property
    def slug(self) -> str:
        """The name of the combination in its grid; of a single experiment, its own name."""
        return self.name if self.combination is None else self.combination.slug

    @property
    def environment_name(self) -> str:
        return self.experiment.conversation_config.environment

    @property
    def layout(self) -> Layout:
        return Layout(directory=self.directory, experiment_name=self.name, grid=self.grid, lease=self.lease)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before the conversations of all shards run."""
        spec, settings = self.experiment.spec, self.experiment.environment_settings
        return () if settings is None else tuple(spec.warnings(settings, self._plan()[: self.limit].deals))

    @property
    def tasks(self) -> Plan:
        """The plan: of the first `limit` tasks, those of the shard."""
        tasks = self._plan()[: self.limit].part(self.shard if self.lease is None else self.lease.shard)
        return tasks if self.only is None else tasks.among(self.only)

    def _plan(self) -> Plan:
        if self.plan is not None:
            return self.plan
        if (material := self.material) is None:
            return plan_of(self.experiment, self.lineup)
        key = self.experiment.settings_key
        plan = plan_of(self.experiment.model_copy(update={key: None}), self.lineup)
        return plan.made_by(lambda task: replace(task, material=material(task.task_id)))

    def parts(self, claimed: AutoShard, events: Path | None = None) -> Iterator[tuple[Shard, Setup]]:
        """The shards that have conversations, each with the part of this run that it is.

        A worker that claims them gives its event log.
        """
        samples = self.experiment.conversation_config.samples_per_task
        heads: dict[int, Shard | None] = {}
        for shard in islice(claimed.shards(), self.tasks.deals):
            lease = Lease(shard=shard, samples=samples, events=events or self.layout.events, heads=heads)
            yield shard, replace(self, lease=lease)

    def restoration(self, environment: Environment) -> Restoration:
        """Makes transcripts of this experiment from recorded replies."""
        return Restoration(
            environment,
            environment_name=self.environment_name,
            experiment_name=self.name,
            models=list(self.experiment.model_definitions),
        )

    @property
    def invocation(self) -> Invocation:
        """What a run of it plays, as the store takes it."""
        return Invocation(layout=self.layout, resolved=self.loaded.resolved, tasks=self.tasks, shard=self.shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSet:
    """The experiments that one command plays on shared engines."""

    name: str
    profile: str
    directory: Path
    setups: tuple[Setup, ...]
    grid: Grid | None = None
    known: GridRecord | None = None
    """What the grid's directory holds already."""
    declared: Declared | None = None
    """What the section `report` declares."""
    claimed: AutoShard | None = None
    """The experiments are split into shards, and this process is one of several that claim them."""

    @property
    def asked(self) -> GridRecord:
        """The grid as its directory records it."""
        assert self.grid is not None, "a single experiment has no grid.yaml"
        return GridRecord(
            name=self.name,
            profile=self.profile,
            asked=self.grid.asked,
            report=self.grid.report.model_dump(mode="json", exclude_defaults=True),
            entries=grid_entries((c.slug, c.identity, c.values) for c in self._combinations()),
        )

    @property
    def is_known(self) -> bool:
        """Whether the directory records the grid exactly as it is now."""
        return self.known is not None and self.known.extended(self.asked, 0) == self.known

    @property
    def left_out(self) -> tuple[str, ...]:
        """Combinations that the directory holds and the file does not ask for any more."""
        asked = {combination.identity for combination in self._combinations()}
        entries = () if self.known is None else self.known.entries
        return tuple(entry.slug for entry in entries if entry.identity not in asked)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before any of them runs, each thing once."""
        return tuple(dict.fromkeys(warning for setup in self.setups for warning in setup.warnings))

    def anchored(self) -> ExperimentSet:
        """The same, with absolute paths where code of others takes part, which may change the working directory."""
        if not any(setup.experiment.plugins or setup.experiment.metric_plugins for setup in self.setups):
            return self
        setups = tuple(
            replace(
                setup,
                directory=setup.directory.absolute(),
                grid=None if setup.grid is None else setup.grid.absolute(),
            )
            for setup in self.setups
        )
        return replace(self, directory=self.directory.absolute(), setups=setups)

    def by_definition(self) -> Iterator[Setup]:
        """For each model definition the first experiment that has it, reduced to that definition."""
        seen: set[str] = set()
        for setup in self.setups:
            for name, definition in setup.experiment.model_definitions.items():
                if (text := definition.model_dump_json()) in seen:
                    continue
                seen.add(text)
                alone = setup.experiment.model_copy(update={"model_definitions": {name: definition}})
                yield replace(setup, loaded=replace(setup.loaded, experiment=alone))

    def _combinations(self) -> Iterator[Combination]:
        return (setup.combination for setup in self.setups if setup.combination is not None)


def set_up(request: RunRequest) -> ExperimentSet:
    """Read the file and check every experiment in it.

    A combination that the grid's directory already holds keeps its name there, whatever else the grid varies now.

    Raises ConfigError with the place of each problem, and RunDirectoryError for a directory that cannot be used.
    """
    if request.out is not None and is_url(str(request.out)):
        raise ConfigError(
            f"--out: {NOT_HERE}, where no journal can be appended to; give a directory on this machine, and add "
            "--mirror URL to copy there what has ended"
        )
    if request.mirror is not None:
        file_system(request.mirror)
    asked = load(request.file, profile=request.profile, overrides=request.overrides, seed=request.seed)
    if request.can_pull:
        each = [part.loaded for part in asked.combinations] if isinstance(asked, Grid) else [asked]
        _check_pulling(request.file, [loaded.experiment for loaded in each])
    return _of_grid(request, asked) if isinstance(asked, Grid) else _of_one(request, asked)


def _of_one(request: RunRequest, loaded: Loaded) -> ExperimentSet:
    name = loaded.experiment.experiment_metadata.experiment_name
    refuse_report(loaded)
    directory = _directory(request, name)
    _refuse_fork(directory)
    loaded = as_begun(loaded, _configs(Layout(directory=directory, experiment_name=name)))
    environment = _checked_environment(loaded)
    setup = Setup(
        loaded=loaded,
        directory=directory,
        environment=lambda: environment,
        lineup=environment.lineup,
        transcript_bytes_min=environment.transcript_bytes_min,
        limit=request.limit,
        shard=_part(request),
    )
    return ExperimentSet(
        name=name, profile=loaded.experiment.profile, directory=directory, setups=(setup,), claimed=_claimed(request)
    )


def _of_grid(request: RunRequest, grid: Grid) -> ExperimentSet:
    directory = _directory(request, grid.name)
    known = read_grid(directory)
    setups = []
    taken = () if known is None else tuple(entry.slug for entry in known.entries)
    refusals = Refusals(len(grid.combinations))
    for number, combination in enumerate(grid.combinations, start=1):
        if known is not None:
            # A directory keeps the experiment that it was made for: a changed one of the same values has another name.
            slug = known.slug_of(combination.identity) or slug_beside(combination, taken)
            combination = combination if slug == combination.slug else renamed(grid.name, combination, slug)
        with refusals.of(number):
            setups.append(_of_combination(request, combination, directory))
    refusals.raise_if_any()
    return ExperimentSet(
        name=grid.name,
        profile=grid.profile,
        directory=directory,
        setups=tuple(setups),
        grid=grid,
        known=known,
        declared=declared_report(grid.report, [setup.combination for setup in setups if setup.combination is not None]),
        claimed=_claimed(request),
    )


def _refuse_fork(directory: Path) -> None:
    """Raises RunDirectoryError for a fork, whose conversations are not those that the file plans."""
    if is_fork(directory):
        raise RunDirectoryError(
            f"{directory} is a fork, and a file plans other conversations; go on with it by "
            f"`mac-run fork {directory}`, or choose another directory with --out"
        )


def _of_combination(request: RunRequest, combination: Combination, directory: Path) -> Setup:
    place = directory / combination.slug
    name = combination.loaded.experiment.experiment_metadata.experiment_name
    loaded = as_begun(combination.loaded, _configs(Layout(directory=place, experiment_name=name, grid=directory)))
    environment = _checked_environment(loaded)
    return Setup(
        loaded=loaded,
        directory=place,
        grid=directory,
        environment=lambda: build_environment(loaded.experiment),
        lineup=environment.lineup,
        transcript_bytes_min=environment.transcript_bytes_min,
        combination=combination,
        limit=request.limit,
        shard=_part(request),
    )


def _configs(layout: Layout) -> Iterator[JsonObject]:
    """The recorded config of a run, where there is one that can be read."""
    with suppress(RunDirectoryError):  # Whoever opens it says what is wrong.
        yield read_config(Disk(), layout)


def _checked_environment(loaded: Loaded) -> Environment:
    """The environment, after the first task was made as well: some settings show their faults only there."""
    with located(loaded):
        environment = build_environment(loaded.experiment)
        next(plan_of(loaded.experiment, environment.lineup)())
    return environment


def _part(request: RunRequest) -> Shard | None:
    return request.shard if isinstance(request.shard, Shard) else None


def _claimed(request: RunRequest) -> AutoShard | None:
    return request.shard if isinstance(request.shard, AutoShard) else None


def _directory(request: RunRequest, name: str) -> Path:
    shard = _part(request)
    if shard is None and request.shard is not None and request.out is None:
        raise ConfigError(f"--shard {request.shard} needs --out DIR: a directory that all workers share")
    named = name if shard is None else f"{name}.shard-{shard.number}-of-{shard.of}"
    return request.out or Path("runs") / named


def _check_pulling(file: Path | Written, experiments: Sequence[Experiment]) -> None:
    """Raises ConfigError for `--pull` where no model can be pulled: the flag would do nothing."""
    definitions = [one for experiment in experiments for one in experiment.model_definitions.values()]
    if not any(definition.spec.can_pull for definition in definitions):
        found = {definition.backend for definition in definitions}
        pulling = {name for name, spec in backend_specs().items() if spec.can_pull}
        raise ConfigError(
            f"--pull: found only the backends {', '.join(sorted(found))} in {file} with the profile "
            f"{experiments[0].profile!r}, and only {', '.join(sorted(pulling))} pulls models; leave the flag out, or "
            "choose another --profile"
        )


class PlacedError(ConfigError):
    """A ConfigError whose text says where in the file the problem is."""


@contextmanager
def located(loaded: Loaded, default: KeyPath = ()) -> Iterator[None]:
    """Add file and line to a ConfigError raised inside the block: those of its key, or of `default`."""
    try:
        yield
    except PlacedError:
        raise
    except ConfigError as error:
        if error.key:
            raise PlacedError(f"{loaded.locate(error.key)}: {error}") from error
        if default:
            raise PlacedError(f"{loaded.locate(default)}: {dotted(default)}: {error}") from error
        raise


class Refusals:
    """Collects the ConfigErrors of all combinations of a grid; each line is reported once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lines: dict[str, str] = {}

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """Collect a ConfigError raised inside the block, for the combination with this number (from 1)."""
        try:
            yield
        except ConfigError as error:
            for line in str(error).splitlines():
                where = f" (combination {number} of {self._count})" if self._count > 1 else ""
                self._lines.setdefault(line, f"{line}{where}")

    def raise_if_any(self) -> None:
        """Raises ConfigError with everything collected, if there is anything."""
        if self._lines:
            raise config_error(self._lines.values())


_BASELINE, _PRIMARY = ("report", "baseline"), ("report", "primary")
_NAMES_SHOWN = 3


def refuse_report(loaded: Loaded) -> None:
    """Raises ConfigError where a single experiment has the section."""
    report = loaded.experiment.report
    for path, value in ((_BASELINE, report.baseline), (_PRIMARY, report.primary)):
        if value is not None:
            text = "changes nothing without a grid: combinations are compared with a baseline; leave `report` out"
            raise _refusal(loaded, path, f"{text}, or set it to null")


def declared_report(report: ReportConfig, combinations: Sequence[Combination]) -> Declared | None:
    """What the combinations are compared with, and by which figure first; None without the section.

    Raises ConfigError, with the key, for a baseline or a figure that is not there.
    """
    loaded = combinations[0].loaded
    if report.baseline is None:
        if report.primary is not None:
            raise _refusal(loaded, _BASELINE, "is missing; the primary outcome is compared with that of a baseline")
        return None
    environment = loaded.experiment.conversation_config.environment
    spec = results_specs().get(loaded.experiment.spec.section)
    figures = () if spec is None else (*compared_figures(spec.measures),)
    if not figures:
        text = f"changes nothing in the environment {environment!r}, whose combinations have no baseline; leave it out"
        raise _refusal(loaded, _BASELINE, text)
    slug = report.baseline if isinstance(report.baseline, str) else None
    if slug is None:
        assert not isinstance(report.baseline, str)
        baseline = _of_values(report.baseline, combinations)
    elif (named := next((one for one in combinations if one.slug == slug), None)) is not None:
        baseline = named
    else:
        text = f"there is no combination {slug!r}; give its name, or its values"
        raise _refusal(loaded, _BASELINE, f"{text}{suggestion(slug, (one.slug for one in combinations))}")
    if report.primary is not None and report.primary not in figures:
        text = f"there is no figure {report.primary!r} to compare{suggestion(report.primary, figures)}"
        raise _refusal(loaded, _PRIMARY, text)
    return Declared(baseline.slug, report.primary)


def _of_values(values: Mapping[str, JsonValue], combinations: Sequence[Combination]) -> Combination:
    """The only combination with these values."""
    loaded = combinations[0].loaded
    columns = list(dict.fromkeys(column for one in combinations for column in one.values))
    for column, value in values.items():
        path = (*_BASELINE, column)
        if column not in columns:
            raise _refusal(loaded, path, f"the grid does not vary it{suggestion(column, columns)}")
        there = {_text(one.values[column]): one.values[column] for one in combinations if column in one.values}
        if _text(value) not in there:
            known = ", ".join(clipped(each) for each in there.values())
            raise _refusal(loaded, path, f"no combination has {clipped(value)}; the grid has: {known}")
    fitting = [
        one
        for one in combinations
        if all(column in one.values and _text(one.values[column]) == _text(value) for column, value in values.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise _refusal(loaded, _BASELINE, f"no combination has all of {in_words(values)}; see --dry-run for those")
    open_ = [column for column in columns if len({_text(one.values.get(column)) for one in fitting}) > 1]
    shown = "; ".join(in_words(one.values) for one in fitting[:_NAMES_SHOWN])
    more = "; ..." if len(fitting) > _NAMES_SHOWN else ""
    text = f"fits {len(fitting)} combinations ({shown}{more}); name one of them: add a value of {', '.join(open_)}"
    raise _refusal(loaded, _BASELINE, text)


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


def _refusal(loaded: Loaded, path: KeyPath, text: str) -> ConfigError:
    return config_error([f"{loaded.locate(path)}: {dotted(path)}: {text}"])


class Preview(NamedTuple):
    """A turn that is open at the start, and what its engine would be sent."""

    turn: Turn
    prompt: Prompt


def first_prompts(setup: Setup, number: int, agent: str | None = None) -> Iterator[Preview]:
    """What each agent that speaks at the start of conversation `number` is sent, or only `agent`.

    The schema or the choices are those that its model is held to. Raises ConfigError for a number or an agent that is
    not there.
    """
    tasks = setup.tasks
    if number not in tasks.indexes:
        asked = f"{len(tasks)} conversations are asked for"
        last = f", the last one is {tasks.indexes[-1]}" if len(tasks) else ""
        raise ConfigError(f"--prompt: there is no conversation {number} (from 0); {asked}{last}")
    place = tasks.indexes.index(number)
    conversation = setup.environment().open(next(tasks[place : place + 1]()))
    turns = conversation.turns()
    waiting = {turn.agent for turn in turns}
    first = [turn for turn in turns if waiting.isdisjoint(turn.after)]
    if agent is not None and agent not in (speakers := [turn.agent for turn in first]):
        why = "speaks later, when others have spoken" if agent in waiting else "does not speak at the start"
        raise ConfigError(f"--agent: {agent!r} {why}{suggestion(agent, speakers)}")
    for turn in first:
        if agent in (None, turn.agent):
            with boundary(ConversationError, "prompt"):
                prompt = conversation.prompt(turn)
            definition = setup.experiment.model_definitions[turn.model]
            yield Preview(turn, held(prompt, decoding_of(definition)))
