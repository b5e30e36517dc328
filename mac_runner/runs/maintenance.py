"""What can be done with a run directory after the run, verify, repair and retry, and its mirror beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mac_runner.backends.redaction import Redactor
from mac_runner.clock import Clock, iso
from mac_runner.environments import build_environment
from mac_runner.errors import RunDirectoryError, UntrustedCodeError
from mac_runner.runs import claims
from mac_runner.runs.play import Player, Results
from mac_runner.runs.recorded import (
    has_question_files,
    rebuilt_transcript,
    recorded_experiment,
    recorded_setup,
    refuse_unloaded,
    set_of_one,
)
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.runs.summary import summary_of
from mac_runner.secrecy import secrets_in
from mac_runner.store import (
    Disk,
    Repairs,
    Run,
    VerifyReport,
    has_run,
    is_grid,
    is_sound,
    open_run,
    read_grid,
    read_run,
    replies_before_failure,
    task_of,
    verify_run,
)
from mac_runner.store.grid import refresh
from mac_runner.store.layout import Layout
from mac_runner.store.leases import locked
from mac_runner.store.lock import read_owner
from mac_runner.store.mirror import Mirror
from mac_runner.store.verify import verify_journal
from mac_runner.types import JsonObject

_UNPLAYED = "nothing was played again: the code of the run is imported only with --trust"

ProgressBar: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[], object]]]
"""Shows what is done and in how many steps; yields what advances it."""


class Verified(NamedTuple):
    """What was found in a run directory, or in the journal of a grid (`is_grid`)."""

    directory: Path
    report: VerifyReport
    is_grid: bool = False


class Begun(NamedTuple):
    """The run directories that have begun: a run, or the combinations of a grid."""

    directories: list[Path]
    not_begun: tuple[str, ...] = ()
    """How many combinations there are, and how many of them have not begun, in words."""


def begun_in(directory: Path) -> Begun:
    """What has begun in the directory of a run or a grid."""
    if not is_grid(directory) or (grid := read_grid(directory)) is None:
        return Begun([directory])
    tops = [directory / entry.slug for entry in grid.entries]
    begun = [*filter(has_run, tops)]
    left = f", {len(tops) - len(begun)} of them not begun" if len(begun) < len(tops) else ""
    return Begun(begun, (f"{len(tops)} combinations{left}",))


def verify_all(directory: Path, bar: ProgressBar) -> Iterator[Verified]:
    """Verify a run directory; of a grid each one that has begun, then the journal of the grid itself. Reads only."""
    disk = Disk()  # One, so that the manifest of a grid is read once.
    for one in begun_in(directory).directories:
        yield Verified(one, _verify(one, bar, disk))
    if is_grid(directory):
        yield Verified(directory, verify_journal(directory), is_grid=True)


def _verify(directory: Path, bar: ProgressBar, disk: Disk) -> VerifyReport:
    try:
        contents = read_run(directory, disk=disk)
    except RunDirectoryError:
        if not Layout.at(disk, directory).root.is_dir() or (found := verify_journal(directory)).is_read:
            raise
        return found
    try:
        experiment = recorded_experiment(contents).experiment
    except UntrustedCodeError:
        found = verify_run(directory, rebuild=lambda transcript: transcript, disk=disk)
        return replace(found, is_played=False, notes=(*found.notes, _UNPLAYED))
    environment = build_environment(experiment)
    with bar(f"verify {directory.name}", contents.counts.done) as advance:

        def rebuilt(transcript: JsonObject) -> JsonObject:
            advance()
            return rebuilt_transcript(transcript, environment)

        return verify_run(directory, rebuild=rebuilt, disk=disk)


class Repaired(NamedTuple):
    """What was repaired in a run directory."""

    directory: Path
    repairs: Repairs

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        return not (self.repairs.reopened or self.repairs.attempts_lost or self.repairs.traces_lost)


def repair_all(directory: Path, clock: Clock) -> Iterator[Repaired]:
    """Compare every digest and write again what is not as acknowledged; of a grid in every run directory.

    Yields each run directory that had damage, after its repair.
    """
    unsound = [setup for one in begun_in(directory).directories if (setup := _unsound(one)) is not None]
    is_guarded, disk = bool(unsound) and is_grid(directory), Disk()
    with locked(disk, directory, clock) if is_guarded else nullcontext():
        for setup in unsound:
            yield _repair(setup, clock, is_guarded=is_guarded)
        if is_guarded:
            refresh(disk, directory, at=iso(clock.utc_now()))


def _unsound(directory: Path) -> Setup | None:
    """The run as recorded, unless it is sound."""
    contents = read_run(directory)
    setup = recorded_setup(contents)
    return None if is_sound(contents.disk, contents.layout) else setup


def _repair(setup: Setup, clock: Clock, *, is_guarded: bool) -> Repaired:
    with open_run(
        setup.invocation,
        clock=clock,
        is_guarded=is_guarded,
        restore=setup.restoration(setup.environment()),
        is_thorough=True,
    ) as run:
        run.write_summary(summary_of(run.contents()))
        return Repaired(setup.directory, run.repairs)


def retry_failed(contents: Run, player: Player) -> Results | None:
    """Play the failed conversations of a run again; a retry that was interrupted goes on. None if none failed.

    Each is checked up to its failure before any is touched. Raises RunDirectoryError for a transcript that is damaged,
    where this version renders other prompts or plays no such games; otherwise what `Player.play` raises.
    """
    open_again = contents.under_retry()
    wanted = open_again or contents.failed()
    if not wanted:
        return None
    materials: dict[str, JsonObject | None] = {}
    setup = recorded_setup(contents, material=materials.get, only=frozenset(wanted))
    refuse_unloaded(setup.experiment, setup.directory)
    if has_question_files(setup.loaded) or not open_again:
        materials |= _checked(contents, setup, wanted)
    return player.play(set_of_one(setup), is_retried=wanted.__contains__)


def _checked(contents: Run, setup: Setup, wanted: set[str]) -> dict[str, JsonObject | None]:
    """The questions of the conversations, each played again up to its failure."""
    materials: dict[str, JsonObject | None] = {}
    restoration = setup.restoration(setup.environment())
    for transcript in contents.failed_transcripts(wanted):
        task = task_of(transcript)
        restoration.opened(task, replies_before_failure(transcript))
        if setup.material is not None:
            materials[task.task_id] = None if task.material is None else dict(task.material)
    return materials


@contextmanager
def mirrored(
    chosen: ExperimentSet, url: str | None, say: Callable[[str], None], *, is_quiet: bool
) -> Iterator[Callable[[Path], object]]:
    """Yields what is to be called with each run directory that has ended. Waits for the copies at the end."""
    if url is None:
        yield lambda _directory: None
        return
    # A file system has its secrets from the environment, and its errors quote what a server says.
    redactor = Redactor(*secrets_in(os.environ))
    mirror = Mirror(url, chosen.directory, say=say, quoted=redactor.quoted)
    # Where nothing is left to play, a copy may have failed before.
    if read_owner(Disk(), chosen.directory) is None and all(map(claims.is_finished, chosen.setups)):
        mirror.add(chosen.directory)
    try:
        yield mirror.add
    finally:
        if not is_quiet and (waiting := mirror.waiting):
            say(f"waiting for {waiting} copies to {url}")
        mirror.close()
