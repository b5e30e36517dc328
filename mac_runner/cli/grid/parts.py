"""A grid ready to run, but for its engines: each combination checked, named, and with a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mac_runner.cli.locating import Refusals, located
from mac_runner.cli.setup import Invocation, Setup, directory_of
from mac_runner.config import Combination, Experiment, Grid, renamed
from mac_runner.environments.building import build_environment
from mac_runner.plan import Plan, Shard, plan_of
from mac_runner.store import GridRecord, Survey, grid_entries, read_grid, survey
from mac_runner.types import Lineup


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One combination. Its environment is built when it is wanted: hundreds of them wait, few are at work."""

    combination: Combination
    directory: Path
    lineup: Lineup | None
    transcript_bytes_min: int
    limit: int | None
    shard: Shard | None

    @property
    def slug(self) -> str:
        """What it is called in its grid."""
        return self.combination.slug

    @property
    def experiment(self) -> Experiment:
        """The experiment, resolved and checked."""
        return self.combination.loaded.experiment

    @property
    def tasks(self) -> Plan:
        """The plan of this invocation: of the first `limit` tasks, those of the shard."""
        return plan_of(self.experiment, self.lineup)[: self.limit].part(self.shard)

    def setup(self) -> Setup:
        """It as an experiment by itself, with its environment."""
        loaded = self.combination.loaded
        return Setup(
            loaded=loaded,
            environment=build_environment(loaded.experiment),
            directory=self.directory,
            limit=self.limit,
            shard=self.shard,
        )

    def survey(self) -> Survey:
        """What a run would find in its directory; touches nothing."""
        loaded = self.combination.loaded
        return survey(
            self.directory,
            experiment_name=loaded.experiment.experiment_metadata.experiment_name,
            resolved=loaded.resolved,
            tasks=self.tasks,
            shard=self.shard,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSetup:
    """All combinations of a grid. `known` is what its directory held so far, None for a new one."""

    grid: Grid
    directory: Path
    parts: tuple[Part, ...]
    known: GridRecord | None

    @property
    def asked(self) -> GridRecord:
        """What is asked for now, as the directory keeps it."""
        return GridRecord(
            name=self.grid.name,
            profile=self.grid.profile,
            asked=self.grid.asked,
            entries=grid_entries(
                (part.slug, part.combination.identity, part.combination.values) for part in self.parts
            ),
        )

    @property
    def is_known(self) -> bool:
        """Whether its directory knows it just as it is asked for."""
        return self.known is not None and self.known.extended(self.asked, 0) == self.known

    @property
    def left_out(self) -> tuple[str, ...]:
        """Combinations of earlier that are not asked for any more."""
        asked = {part.combination.identity for part in self.parts}
        entries = () if self.known is None else self.known.entries
        return tuple(entry.slug for entry in entries if entry.identity not in asked)


def set_up_grid(invocation: Invocation, grid: Grid) -> GridSetup:
    """Check every combination and say where each belongs. Raises ConfigError, and RunDirectoryError for the directory.

    A combination that its directory knows keeps the name that it has there, whatever else the grid varies by now.
    """
    directory = directory_of(invocation, grid.name)
    known = read_grid(directory)
    parts = []
    refusals = Refusals(len(grid.combinations))
    for number, combination in enumerate(grid.combinations, start=1):
        slug = None if known is None else known.slug_of(combination.identity)
        if slug is not None and slug != combination.slug:
            combination = renamed(grid.name, combination, slug)
        with refusals.of(number):
            parts.append(_part(combination, directory, invocation))
    refusals.tell()
    return GridSetup(grid=grid, directory=directory, parts=tuple(parts), known=known)


def setups_by_definition(invocation: Invocation, grid: Grid) -> Iterator[Setup]:
    """For each definition of a model the first combination that has it, as though it had no other."""
    seen: set[str] = set()
    for part in set_up_grid(invocation, grid).parts:
        for name, definition in part.experiment.model_definitions.items():
            if (text := definition.model_dump_json()) in seen:
                continue
            seen.add(text)
            setup = part.setup()
            alone = part.experiment.model_copy(update={"model_definitions": {name: definition}})
            yield replace(setup, loaded=replace(setup.loaded, experiment=alone))


def _part(combination: Combination, directory: Path, invocation: Invocation) -> Part:
    with located(combination.loaded):
        environment = build_environment(combination.loaded.experiment)
        next(plan_of(combination.loaded.experiment, environment.lineup)())
    return Part(
        combination=combination,
        directory=directory / combination.slug,
        lineup=environment.lineup,
        transcript_bytes_min=environment.transcript_bytes_min,
        limit=invocation.limit,
        shard=invocation.shard,
    )
