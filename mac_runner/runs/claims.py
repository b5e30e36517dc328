"""Shards that several workers claim: the next free one, and the merge by the last worker.

A claim is the lock on the run directory of a shard. So a shard whose worker has died is free again: at once on this
machine, and after its lease where workers on several machines share a network filesystem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from mac_runner.clock import Clock, pause
from mac_runner.config import identity_of
from mac_runner.errors import RunDirectoryError, RunLockedError
from mac_runner.printable import counted
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.runs.stream import OpenRun
from mac_runner.runs.summary import grid_results, summary_of
from mac_runner.store import Disk, ShardsRecord, Survey, merge_runs, open_grid
from mac_runner.store.grid import join_grid, read_grid
from mac_runner.store.layout import SUMMARY
from mac_runner.store.lock import read_owner
from mac_runner.store.shards import begin_shards, check_shards, is_merged, make_claimable
from mac_runner.store.workers import worker_events

LOOK_INTERVAL_S: Final = 1.0
"""How often a worker without a shard looks whether one has become free."""
WAIT_SAID_S: Final = 10.0
"""After so long a worker says that it waits, and for what."""
_NAMED_MAX: Final = 3
OPENED_AHEAD: Final = 2
"""The next shard is claimed when so many conversations of the last one have not begun."""


class Claims:
    """The shards that are left, as far as this worker knows, and the next one that it may have.

    `open_claimed` opens the run directory of a shard, and raises RunLockedError when another process holds it.
    `is_free` says that no process is known to be at work there.
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
        held = [(part.directory, read_owner(Disk(), part.directory)) for part in self._left[:_NAMED_MAX]]
        more = f" and {len(self._left) - len(held)} more" if len(self._left) > len(held) else ""
        names = (f"{directory.name} ({owner or 'nobody left a name'})" for directory, owner in held)
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


def is_free(part: Setup) -> bool:
    """Whether no process has left its note in the directory of a shard."""
    return read_owner(Disk(), part.directory) is None


def is_complete(part: Setup) -> bool:
    """Whether nothing is left to do in a shard."""
    return part.is_complete(despite_settings=True)


def prepare(part: Setup) -> None:
    """Make the directory of a shard, so that it can be locked."""
    make_claimable(part.directory)


def parts_left(chosen: ExperimentSet) -> dict[str, list[Setup]]:
    """The shards of each experiment, by its slug, that are not known to be complete."""
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    parts = {setup.slug: [*setup.parts(chosen.claimed)] for setup in chosen.setups if not is_merged(setup.directory)}
    return {
        slug: left for slug, each in parts.items() if (left := [p for p in each if not (is_free(p) and is_complete(p))])
    }


def check(chosen: ExperimentSet) -> None:
    """Refuse a directory that these shards have no place in; changes nothing."""
    for setup in chosen.setups:
        check_shards(setup.directory, _record(chosen, setup))


def begin(chosen: ExperimentSet) -> None:
    """Make the directories of shards, or join those there."""
    if chosen.grid is not None:
        join_grid(chosen.directory, chosen.asked)
    for setup in chosen.setups:
        begin_shards(setup.directory, _record(chosen, setup))


def is_all_merged(chosen: ExperimentSet) -> bool:
    """Whether nothing is left to do for a worker."""
    has_tables = chosen.grid is None or Disk().exists(chosen.directory / SUMMARY)
    return has_tables and all(is_merged(setup.directory) for setup in chosen.setups)


def merged(chosen: ExperimentSet) -> ExperimentSet:
    """The set whose shards are merged, as one that a single process played.

    Raises RunDirectoryError where conversations are left, which no shard takes any more.
    """
    for setup in chosen.setups:
        check_shards(setup.directory, _record(chosen, setup))
        if setup.survey().left:
            raise RunDirectoryError(
                f"{setup.directory}: the shards are merged, and conversations are left in the merged run; play them "
                f"with `mac-run FILE --out {chosen.directory}`, without --shard"
            )
    return replace(chosen, claimed=None, known=None if chosen.grid is None else read_grid(chosen.directory))


def surveyed(chosen: ExperimentSet, setup: Setup) -> Survey:
    """What a run would find of an experiment, whether or not its shards are merged."""
    if chosen.claimed is None or is_merged(setup.directory):
        return setup.survey()
    check_shards(setup.directory, _record(chosen, setup))
    found = [part.survey() for part in setup.parts(chosen.claimed)]
    return Survey(
        planned=sum(each.planned for each in found),
        finished=sum(each.finished for each in found),
        failed=sum(each.failed for each in found),
        half_done=sum(each.half_done for each in found),
        recorded_replies=sum(each.recorded_replies for each in found),
        changed_settings=tuple(dict.fromkeys(change for each in found for change in each.changed_settings)),
        is_complete=False,
    )


def merge_all(
    chosen: ExperimentSet, clock: Clock, say: Callable[[str], None], *, wait: Callable[[float], None] = pause
) -> None:
    """Merge every experiment, whose shards are complete. One worker does it, and the others wait for it."""
    has_waited = False
    while not is_all_merged(chosen):
        try:
            if chosen.grid is None:
                _merge(chosen, chosen.setups[0], clock)
            else:
                _merge_grid(chosen, clock)
        except RunLockedError as held:
            if not has_waited:
                say(f"waiting for the merge: {held}")
            has_waited = True
            wait(LOOK_INTERVAL_S)
        except RunDirectoryError:
            # Another worker was quicker: it merged between the look and the lock.
            if not is_all_merged(chosen):
                raise


def _record(chosen: ExperimentSet, setup: Setup) -> ShardsRecord:
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    return ShardsRecord(
        of=chosen.claimed.of,
        experiment_name=setup.name,
        identity=identity_of(setup.experiment),
        conversations=len(setup.tasks),
        samples_per_task=setup.experiment.conversation_config.samples_per_task,
    )


def _merge(chosen: ExperimentSet, setup: Setup, clock: Clock) -> None:
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    plans = {part.directory: part.tasks for part in setup.parts(chosen.claimed)}
    if not plans:
        raise RunDirectoryError(f"{setup.directory} has no conversation to play; ask for at least one")
    merge_runs(
        setup.directory,
        [*plans],
        summarise=summary_of,
        plan=lambda contents: plans[contents.layout.directory],
        clock=clock,
        logs=worker_events(setup.directory),
    )


def _merge_grid(chosen: ExperimentSet, clock: Clock) -> None:
    with open_grid(chosen.directory, asked=chosen.asked, clock=clock) as grid:
        for setup in chosen.setups:
            if not is_merged(setup.directory):
                _merge(chosen, setup, clock)
        grid.note_workers()
        results = grid_results(chosen, grid.record, grid.accounting(), lambda _setup: True)
        grid.write_tables(results.files())
