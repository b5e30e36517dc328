"""How a grid stands: each of its combinations, and all of them together. Reads only, no lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.grid import GridEntry, GridRecord, read_grid
from mac_runner.store.layout import Layout
from mac_runner.store.machine import Machine
from mac_runner.store.owner import is_alive, last_sign_of_life, read_owner
from mac_runner.store.reader import has_run
from mac_runner.store.sessions import merge_accountings, usage_of
from mac_runner.store.standing import SessionStanding, Standing, read_standing


@dataclass(frozen=True, slots=True, kw_only=True)
class GridStanding:
    """How a grid stands. `whole` adds up the combinations that have begun, and its sessions are those of the grid.

    `combinations` are those that are asked for, each with its standing, None for one that has not begun.
    """

    whole: Standing
    combinations: tuple[tuple[GridEntry, Standing | None], ...]

    @property
    def not_begun(self) -> int:
        """How many combinations have not begun."""
        return sum(standing is None for _, standing in self.combinations)

    @property
    def complete(self) -> int:
        """How many combinations are through."""
        return sum(found is not None and found.ended == found.planned for _, found in self.combinations)


def read_grid_standing(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> GridStanding:
    """Look at the directory of a grid. Raises RunDirectoryError when it is none."""
    disk = disk or Disk()
    record = read_grid(directory, disk=disk)
    if record is None:
        raise RunDirectoryError(f"{directory} is no directory of a grid: there is no grid.yaml in it")
    combinations = tuple(
        (known, _begun(directory / known.slug, disk, machine)) for known in record.entries if known.is_asked
    )
    begun = [standing for _, standing in combinations if standing is not None]
    whole = _whole(directory, record, begun, disk=disk, machine=machine or Machine())
    return GridStanding(whole=whole, combinations=combinations)


def _begun(directory: Path, disk: Disk, machine: Machine | None) -> Standing | None:
    return read_standing(directory, disk=disk, machine=machine) if has_run(directory, disk=disk) else None


def _whole(directory: Path, record: GridRecord, begun: Sequence[Standing], *, disk: Disk, machine: Machine) -> Standing:
    sessions = _sessions(disk, Layout(directory=directory, experiment_name=record.name))
    usage = merge_accountings(session.usage for session in sessions)
    owner = read_owner(disk, directory)
    return Standing(
        directory=directory,
        experiment_name=record.name,
        shard=begun[0].shard if begun else None,
        planned=sum(standing.planned for standing in begun),
        finished=sum(standing.finished for standing in begun),
        failed=sum(standing.failed for standing in begun),
        half_done=sum(standing.half_done for standing in begun),
        failures=tuple(row for standing in begun for row in standing.failures),
        sessions=len(sessions),
        latest=sessions[-1] if sessions else None,
        usage=usage,
        owner=owner,
        is_owner_alive=None if owner is None else is_alive(owner, machine),
        last_sign_of_life=last_sign_of_life(disk, directory),
    )


def _sessions(disk: Disk, layout: Layout) -> list[SessionStanding]:
    """The sessions of the grid: when each began and what it used up. What they ended, the combinations tell."""
    found = []
    for number in journal.sessions(disk, layout):
        session = SessionStanding(number=number)
        for mark in journal.marks_of(disk, layout, number):
            if mark["kind"] == "session":
                session.started_at = str(mark.get("started_at"))
            elif mark["kind"] == "checkpoint":
                session.usage = usage_of(mark)
        found.append(session)
    return found
