"""Shards that several workers claim: which are left, and where a worker gets the next free one.

A claim is a lease on a shard of the run. So a shard whose worker has died is free again: at once on this machine, and
after its lease where workers on several machines share a network filesystem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock, iso
from mac_runner.config import identity_of
from mac_runner.plan import Shard
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.runs.stream import OpenRun, Supply
from mac_runner.store import Disk, LeasesRecord, is_complete
from mac_runner.store.grid import join_grid
from mac_runner.store.layout import SUMMARY
from mac_runner.store.leases import begin_leases, check_leases, make_claimable
from mac_runner.store.lock import read_owner
from mac_runner.store.standing import ended_tasks

OPENED_AHEAD: Final = 2
"""The next shard is claimed when so many conversations of the last one have not begun."""


def shards_left(chosen: ExperimentSet) -> dict[str, list[Shard]]:
    """The shards of each experiment, by its slug, that are not known to be complete."""
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    left: dict[str, list[Shard]] = {}
    for setup in chosen.setups:
        if is_finished(setup):
            continue
        # Whole sessions have records of all shards, so they are read once here and not for each shard.
        ended = ended_tasks(setup.invocation)
        parts = setup.parts(chosen.claimed)
        left[setup.slug] = [
            shard
            for shard, part in parts
            if not (_is_free(part) and all(task_id in ended for task_id, _ in part.tasks.ids()))
        ]
    return {slug: shards for slug, shards in left.items() if shards}


def supply_of(
    chosen: ExperimentSet,
    setups: Sequence[Setup],
    left: Mapping[str, Sequence[Shard]],
    open_claimed: Callable[[Setup], OpenRun],
    events: Path,
) -> Supply:
    """The shards of experiments that are `left`, as a worker with this event log may have them."""
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    parts = ((setup, part) for setup in setups for part in setup.parts(chosen.claimed, events))
    wanted = [part for setup, (shard, part) in parts if shard in left[setup.slug]]

    def opener(part: Setup) -> OpenRun:
        make_claimable(Disk(), part.layout.place)
        return open_claimed(part)

    return Supply(wanted, opener, ahead=OPENED_AHEAD, is_free=_is_free, is_complete=is_finished)


def _is_free(part: Setup) -> bool:
    """Whether no process has left its note at a shard."""
    return read_owner(Disk(), part.layout.place) is None


def is_finished(setup: Setup) -> bool:
    """Whether nothing is left to do for any worker in the directory of an experiment, or in a shard of it."""
    return is_complete(setup.invocation, despite_settings=True)


def check(chosen: ExperimentSet) -> None:
    """Refuse a directory that these shards have no place in; changes nothing."""
    for setup in chosen.setups:
        check_leases(Disk(), _record(chosen, setup), setup.invocation)


def begin(chosen: ExperimentSet, left: Iterable[str], clock: Clock) -> None:
    """Have runs whose shards can be claimed, of the experiments with something left."""
    if chosen.grid is not None:
        join_grid(chosen.directory, chosen.asked)
    wanted = {*left}
    for setup in chosen.setups:
        if setup.slug in wanted:
            at = iso(clock.utc_now())
            begin_leases(Disk(), _record(chosen, setup), setup.invocation, at=at)


def is_ended(chosen: ExperimentSet) -> bool:
    """Whether all has been played and written, but for what who is at work in a grid may be about to write."""
    has_tables = chosen.grid is None or Disk().exists(chosen.directory / SUMMARY)
    return has_tables and all(map(is_finished, chosen.setups))


def is_over(chosen: ExperimentSet) -> bool:
    """Whether nothing is left to do for a worker, and nobody is about to write the tables of a grid."""
    return (chosen.grid is None or read_owner(Disk(), chosen.directory) is None) and is_ended(chosen)


def _record(chosen: ExperimentSet, setup: Setup) -> LeasesRecord:
    assert chosen.claimed is not None, "only a set that is claimed has shards"
    return LeasesRecord(
        of=chosen.claimed.of,
        experiment_name=setup.name,
        identity=identity_of(setup.experiment),
        conversations=len(setup.tasks),
        samples_per_task=setup.experiment.conversation_config.samples_per_task,
    )
