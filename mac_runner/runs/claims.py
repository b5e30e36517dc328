"""Shards that several workers claim: the next free one, and the end of the run by the worker that finds it.

A claim is a lease on a shard of the run. So a shard whose worker has died is free again: at once on this machine, and
after its lease where workers on several machines share a network filesystem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock, iso, pause
from mac_runner.config import identity_of
from mac_runner.errors import RunLockedError
from mac_runner.plan import Shard
from mac_runner.printable import counted
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.runs.stream import OpenRun
from mac_runner.runs.summary import write_grid
from mac_runner.store import Disk, LeasesRecord, open_grid
from mac_runner.store.grid import join_grid
from mac_runner.store.layout import SUMMARY
from mac_runner.store.leases import begin_leases, check_leases, make_claimable
from mac_runner.store.lock import Owner, read_owner

LOOK_INTERVAL_S: Final = 1.0
"""How often a worker without a shard looks whether one has become free."""
WAIT_SAID_S: Final = 10.0
"""After so long a worker says that it waits, and for what."""
_NAMED_MAX: Final = 3
OPENED_AHEAD: Final = 2
"""The next shard is claimed when so many conversations of the last one have not begun."""


class Claims:
    """The shards that are left, as far as this worker knows, and the next one that it may have.

    `open_claimed` opens a shard, and raises RunLockedError when another process holds it. `is_free` says that no
    process is known to be at work there.
    """

    ahead: float = OPENED_AHEAD

    def __init__(
        self,
        parts: Iterable[Setup],
        open_claimed: Callable[[Setup], OpenRun],
        *,
        is_free: Callable[[Setup], bool],
        is_complete: Callable[[Setup], bool],
    ) -> None:
        self._left = list(parts)
        self._open_claimed = open_claimed
        self._is_free = is_free
        self._is_complete = is_complete

    @property
    def is_over(self) -> bool:
        """Whether every shard is complete, or was claimed by this worker."""
        return not self._left

    def waits_for(self) -> str:
        """The shards that are left, in words, and who holds the first of them."""
        held = [(place_of(part), holder(part)) for part in self._left[:_NAMED_MAX]]
        more = f" and {len(self._left) - len(held)} more" if len(self._left) > len(held) else ""
        names = (f"{place.name} ({owner or 'nobody left a name'})" for place, owner in held)
        return f"{counted(len(self._left), 'shards')} that other processes hold: {', '.join(names)}{more}"

    def open_next(self) -> OpenRun | None:
        """Open the first free shard; None when there is none."""
        for part in tuple(self._left):
            # The look at a shard in use is cheap; whether one is complete takes reading it.
            if self._is_free(part) and self._is_complete(part):
                self._left.remove(part)
                continue
            try:
                opened = self._open_claimed(part)
            except RunLockedError:
                continue
            self._left.remove(part)
            return opened
        return None


def place_of(part: Setup) -> Path:
    """Where the holder of a shard leaves its note."""
    return part.layout.place


def holder(part: Setup) -> Owner | None:
    """Who has left a note at a shard, or has the whole run."""
    return read_owner(Disk(), place_of(part)) or read_owner(Disk(), part.layout.root)


def is_free(part: Setup) -> bool:
    """Whether no process has left its note at a shard."""
    return read_owner(Disk(), place_of(part)) is None


def is_complete(part: Setup) -> bool:
    """Whether nothing is left to do in a shard."""
    return part.is_complete(despite_settings=True)


def prepare(part: Setup) -> None:
    """Make the place of a shard's lock, so that it can be locked."""
    make_claimable(Disk(), place_of(part))


def shards_left(chosen: ExperimentSet) -> dict[str, list[Shard]]:
    """The shards of each experiment, by its slug, that are not known to be complete."""
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    left: dict[str, list[Shard]] = {}
    for setup in chosen.setups:
        if is_finished(setup):
            continue
        # Whole sessions have records of all shards, so they are read once here and not for each shard.
        ended = setup.ended()
        parts = setup.parts(chosen.claimed)
        left[setup.slug] = [
            shard
            for shard, part in parts
            if not (is_free(part) and all(task_id in ended for task_id, _ in part.tasks.ids()))
        ]
    return {slug: shards for slug, shards in left.items() if shards}


def is_finished(setup: Setup) -> bool:
    """Whether nothing is left to do for any worker in the directory of an experiment."""
    return setup.is_complete(despite_settings=True)


def check(chosen: ExperimentSet) -> None:
    """Refuse a directory that these shards have no place in; changes nothing."""
    for setup in chosen.setups:
        check_leases(Disk(), setup.layout, _record(chosen, setup), setup.loaded.resolved)


def begin(chosen: ExperimentSet, left: Iterable[str], clock: Clock) -> None:
    """Have runs whose shards can be claimed, of the experiments with something left."""
    if chosen.grid is not None:
        join_grid(chosen.directory, chosen.asked)
    wanted = {*left}
    for setup in chosen.setups:
        if setup.slug in wanted:
            at = iso(clock.utc_now())
            record = _record(chosen, setup)
            begin_leases(Disk(), setup.layout, record, setup.loaded.resolved, setup.tasks, at=at)


def is_over(chosen: ExperimentSet) -> bool:
    """Whether nothing is left to do for a worker. Who is at work in a grid may be about to write its tables."""
    disk, directory = Disk(), chosen.directory
    has_tables = chosen.grid is None or (disk.exists(directory / SUMMARY) and read_owner(disk, directory) is None)
    return has_tables and all(map(is_finished, chosen.setups))


def finish(
    chosen: ExperimentSet,
    open_whole: Callable[[Setup], OpenRun],
    clock: Clock,
    say: Callable[[str], None],
    *,
    wait: Callable[[float], None] = pause,
    on_complete: Callable[[Path], object] = lambda _directory: None,
) -> None:
    """End the run of every experiment whose conversations have all ended. One worker does it, the others wait for it.

    Conversations that turn out to be open again are left to who asks for them next. `on_complete` receives the
    directory of a grid that this worker has ended; `open_whole` tells of a run.
    """
    has_waited = False
    while True:
        try:
            if chosen.grid is None:
                _finish(chosen.setups[0], open_whole)
            elif _finish_grid(chosen, open_whole, clock):
                on_complete(chosen.directory)
        except RunLockedError as held:
            if not has_waited:
                say(f"waiting for the end of the run: {held}")
            has_waited = True
            wait(LOOK_INTERVAL_S)
        else:
            return


def _record(chosen: ExperimentSet, setup: Setup) -> LeasesRecord:
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    return LeasesRecord(
        of=chosen.claimed.of,
        experiment_name=setup.name,
        identity=identity_of(setup.experiment),
        conversations=len(setup.tasks),
        samples_per_task=setup.experiment.conversation_config.samples_per_task,
    )


def _finish(setup: Setup, open_whole: Callable[[Setup], OpenRun]) -> None:
    if is_finished(setup):
        return
    opened = open_whole(setup)
    # Another worker may have been quicker, between the look and the lock.
    if opened.to_begin or is_finished(setup):
        opened.run.withdraw()
        return
    opened.is_exhausted = True
    opened.close()


def _finish_grid(chosen: ExperimentSet, open_whole: Callable[[Setup], OpenRun], clock: Clock) -> bool:
    """Whether this worker has ended the grid."""
    if is_over(chosen):
        return False
    with open_grid(chosen.directory, asked=chosen.asked, clock=clock) as grid:
        for setup in chosen.setups:
            _finish(setup, open_whole)
        if is_ended := all(map(is_finished, chosen.setups)):
            grid.note_workers()
            write_grid(chosen, grid)
    return is_ended
