"""Who is at work in a run directory, by their own account: a note of who it is, and a sign of life now and then.

The note (`.owner.json`) is there while somebody is at work, and stays when they are killed. The signs (`.lease`) are a
line each, with the time, every `LEASE_INTERVAL_S`. Whether an owner still lives is told from the note where it is a
process of this machine; an owner on another machine is believed dead only when the signs have not changed for
LEASE_PERIODS of the observer's own monotonic clock. Wall clocks, on which machines never agree, decide nothing.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from mac_runner.errors import StoreError
from mac_runner.store.disk import Disk
from mac_runner.store.frames import encode_json
from mac_runner.store.layout import lease_path, owner_path
from mac_runner.store.machine import Machine
from mac_runner.store.records import entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process at work. `machine` and `process_start` make its number mean this very process."""

    pid: int
    host: str
    started_at: str
    command: str
    machine: str
    process_start: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} since {self.started_at} ({self.command})"


def this_process(machine: Machine, *, started_at: str) -> Owner:
    """The calling process as an owner."""
    return Owner(
        pid=os.getpid(),
        host=machine.host,
        started_at=started_at,
        command=" ".join(sys.argv),
        machine=machine.identity,
        process_start=machine.process_start(os.getpid()) or "",
    )


def read_owner(disk: Disk, directory: Path) -> Owner | None:
    """Whose note is there; None when there is none, or none that can be read."""
    try:
        record = json.loads(disk.read(owner_path(directory)))
        return Owner(
            pid=entry(record, "pid", int),
            host=entry(record, "host", str),
            started_at=entry(record, "started_at", str),
            command=entry(record, "command", str),
            machine=entry(record, "machine", str),
            process_start=entry(record, "process_start", str),
        )
    except (StoreError, ValueError, AttributeError, RecursionError):
        return None


def sign(disk: Disk, directory: Path, owner: Owner) -> None:
    """Leave a note, and begin its signs of life."""
    disk.remove(lease_path(directory))
    disk.write_atomic(owner_path(directory), [encode_json(asdict(owner)), b"\n"])
    show_life(disk, directory, at=owner.started_at)


def sign_off(disk: Disk, directory: Path, owner: Owner) -> None:
    """Take the note away, unless it has become somebody else's."""
    if read_owner(disk, directory) == owner:
        disk.remove(owner_path(directory))
        disk.remove(lease_path(directory))


def show_life(disk: Disk, directory: Path, *, at: str) -> None:
    """Leave a sign of life. The file is closed each time, which is what makes it known to other machines."""
    lease = disk.open_append(lease_path(directory))
    try:
        disk.append(lease, at.encode("ascii") + b"\n")
    finally:
        disk.close(lease)


def signs_of_life(disk: Disk, directory: Path) -> bytes:
    """All signs so far: what changes while the owner lives."""
    return b"".join(disk.chunks(lease_path(directory)))


def last_sign_of_life(disk: Disk, directory: Path) -> str | None:
    """The time of the last sign, by the owner's clock."""
    signs = signs_of_life(disk, directory).split()
    return signs[-1].decode("ascii", "replace") if signs else None


def is_alive(owner: Owner, machine: Machine) -> bool | None:
    """Whether the process is still there; None where this machine cannot tell."""
    if owner.machine != machine.identity:
        return None
    return machine.process_start(owner.pid) == owner.process_start
