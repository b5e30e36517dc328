"""`mac-run repair RUN`: what is damaged in a run directory put right, as far as its journal knows it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from mac_runner.cli.exits import Exit
from mac_runner.cli.printing import say
from mac_runner.cli.recorded import recorded_setup
from mac_runner.cli.results import summary_of
from mac_runner.cli.setup import Setup
from mac_runner.clock import SystemClock
from mac_runner.store import Disk, Repairs, has_run, is_grid, is_sound, open_run, read_grid, read_run
from mac_runner.store.identity import grid_of, run_command
from mac_runner.store.lock import locked


def repair(directory: Path, *, is_quiet: bool) -> Exit:
    """Compare every digest, and write again what is not what was acknowledged; of a grid in all its combinations.

    FAILURES when something is left that the journal does not have: then conversations are open again.
    """
    grid = read_grid(directory) if is_grid(directory) else None
    slugs = [] if grid is None else [entry.slug for entry in grid.entries]
    runs = [directory] if grid is None else [path for slug in slugs if has_run(path := directory / slug)]
    unsound = [setup for run in runs if (setup := _unsound(run)) is not None]
    if not unsound and not is_quiet:
        say(f"{directory}: every transcript is what was acknowledged; nothing to repair")
    with nullcontext() if grid is None or not unsound else locked(Disk(), directory):
        return max((_repair(setup, is_quiet=is_quiet) for setup in unsound), default=Exit.OK)


def _unsound(directory: Path) -> Setup | None:
    """A run as it is recorded, unless nothing is wrong with it."""
    contents = read_run(directory)
    setup = recorded_setup(contents)
    return None if is_sound(contents.disk, contents.layout) else setup


def _repair(setup: Setup, *, is_quiet: bool) -> Exit:
    directory = setup.directory
    with open_run(
        directory,
        experiment_name=setup.name,
        resolved=setup.resolved,
        tasks=setup.tasks,
        clock=SystemClock(),
        shard=setup.shard,
        restore=setup.restoration,
        is_thorough=True,
    ) as run:
        run.write_summary(summary_of(run.contents()))
        repairs = run.repairs
    _tell(directory, repairs, is_quiet=is_quiet)
    return Exit.FAILURES if repairs.reopened or repairs.attempts_lost else Exit.OK


def _tell(directory: Path, repairs: Repairs, *, is_quiet: bool) -> None:
    if not is_quiet:
        for line in repairs.in_words():
            say(f"{directory}: {line}")
    again = run_command(Disk(), directory)
    if repairs.reopened:
        say(f"{directory}: conversations open again: {len(repairs.reopened)}; go on with: {again}")
    elif not is_quiet and (grid := grid_of(Disk(), directory)) is not None:
        say(f"{grid}: its tables are brought up to date by: {again}")
