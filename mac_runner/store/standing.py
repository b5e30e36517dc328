"""How a run stands, for whoever looks from outside: while a process is at work on it, or after. Reads only, no lock.

One pass over the marks of the journal and one over the ids of its replies; no transcript is opened and no reply
parsed, so looking costs seconds at a hundred thousand conversations and holds up nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.identity import read_config, read_shard
from mac_runner.store.layout import Layout, manifest_path
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import decode_manifest
from mac_runner.store.owner import Owner, is_alive, last_sign_of_life, read_owner
from mac_runner.store.records import entry
from mac_runner.store.sessions import merge_accounting, usage_of
from mac_runner.types import JsonObject


@dataclass(slots=True, kw_only=True)
class SessionStanding:
    """One session so far: what it ended, the turns of that, and what it had used up when it last said so."""

    number: int
    started_at: str | None = None
    ended: int = 0
    turns_ended: int = 0
    usage: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands. `latest` is its last session, and `usage` what all of them used up.

    `owner` has left a note that it is at work; `is_owner_alive` is None where this machine cannot tell.
    """

    directory: Path
    experiment_name: str
    shard: Shard | None
    planned: int
    finished: int
    failed: int
    half_done: int
    failures: tuple[JsonObject, ...]
    sessions: int
    latest: SessionStanding | None
    usage: JsonObject
    owner: Owner | None
    is_owner_alive: bool | None
    last_sign_of_life: str | None

    @property
    def ended(self) -> int:
        """How many conversations are through, whatever became of them."""
        return self.finished + self.failed


def read_standing(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> Standing:
    """Look at a run directory. Raises RunDirectoryError when it is none."""
    disk = disk or Disk()
    read_config(disk, directory)
    path = manifest_path(directory)
    if not disk.exists(path):
        raise RunDirectoryError(f"{directory} was never started fully; run the same command again")
    manifest = decode_manifest(disk.chunks(path), str(path))
    layout = Layout(directory=directory, experiment_name=manifest.experiment_name)
    owner = read_owner(disk, directory)
    gathered = _Gathered()
    for number in journal.sessions(disk, layout):
        gathered.take(disk, layout, number)
    failures = tuple(row for row in gathered.done.values() if row is not None)
    return Standing(
        directory=directory,
        experiment_name=manifest.experiment_name,
        shard=read_shard(disk, directory),
        planned=len(manifest.planned.keys() | gathered.done.keys()),
        finished=len(gathered.done) - len(failures),
        failed=len(failures),
        half_done=len(journal.replied(disk, layout) - gathered.done.keys()),
        failures=failures,
        sessions=gathered.sessions,
        latest=gathered.latest,
        usage=gathered.usage,
        owner=owner,
        is_owner_alive=None if owner is None else is_alive(owner, machine or Machine()),
        last_sign_of_life=last_sign_of_life(disk, directory),
    )


@dataclass(slots=True)
class _Gathered:
    """What the marks of the journal say. `done` has the index row of each conversation that failed, and else None."""

    done: dict[str, JsonObject | None] = field(default_factory=dict)
    sessions: int = 0
    latest: SessionStanding | None = None
    usage: JsonObject = field(default_factory=dict)

    def take(self, disk: Disk, layout: Layout, number: int) -> None:
        """Take in one session."""
        session = SessionStanding(number=number)
        for mark in journal.marks_of(disk, layout, number):
            self._take_mark(mark, session)
        self.sessions += 1
        self.latest = session
        self.usage = merge_accounting(self.usage, session.usage)

    def _take_mark(self, mark: JsonObject, session: SessionStanding) -> None:
        match mark["kind"]:
            case "session":
                session.started_at = str(mark.get("started_at"))
            case "checkpoint":
                session.usage = usage_of(mark)
            case "retry":
                self.done.pop(entry(mark, "id", str), None)
            case "done":
                row = entry(mark, "row", dict)
                self.done[entry(mark, "id", str)] = row if row["status"] == "failed" else None
                session.ended += 1
                session.turns_ended += entry(entry(row, "counts", dict), "turns", int)
            case _:
                pass
