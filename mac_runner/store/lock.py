"""One process per run directory: the lock, the owner's note beside it, and signs of life.

`.lock` is locked while a process is at work, and stays: otherwise two processes could lock two files of one name. Only
a refused start takes it along, from a place in which it has written nothing else. The kernel drops the lock with the
process, so a dead owner holds up no one.

`.owner.json` says who holds the lock, for the error that the next process gets. It stays behind after a kill. `.lease`
gets a line with the time every `LEASE_INTERVAL_S`.

A lock on a network filesystem may hold on one machine only. There the note counts too. An owner that is a live process
of this machine keeps others out. An owner on another machine counts as dead when its signs of life have not changed for
`LEASE_PERIODS` of the observer's monotonic clock. Wall clocks decide nothing. If two processes get in all the same, the
store stays correct: each session has a journal segment of its own, and each result is published once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from mac_runner.clock import Clock, SystemClock, iso, pause
from mac_runner.errors import RunLockedError, StoreError
from mac_runner.secrecy import command_of
from mac_runner.store.disk import Disk
from mac_runner.store.layout import LEASE, LOCK, OWNER
from mac_runner.store.machine import Machine, is_network
from mac_runner.store.records import encode_json
from mac_runner.structs import convert

LEASE_INTERVAL_S: Final = 10.0
"""How often a process at work shows that it lives."""
LEASE_PERIODS: Final = 3
LEASE_LOOK_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process at work. `machine` and `process_start` make its number mean this very process.

    `command` is the program and its files: any other word of a command line may be a secret.
    """

    pid: int
    host: str
    started_at: str
    command: str
    machine: str
    process_start: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} since {self.started_at} ({self.command})"


def this_process(machine: Machine, *, started_at: str) -> Owner:
    return Owner(
        pid=os.getpid(),
        host=machine.host,
        started_at=started_at,
        command=command_of(sys.argv),
        machine=machine.identity,
        process_start=machine.process_start(os.getpid()) or "",
    )


def read_owner(disk: Disk, directory: Path) -> Owner | None:
    """The owner that the note names; None when there is no readable note."""
    try:
        return convert(json.loads(disk.read(directory / OWNER)), Owner)
    except (StoreError, ValueError, RecursionError):
        return None


def sign(disk: Disk, directory: Path, owner: Owner) -> None:
    """Leave a note and a first sign of life."""
    disk.remove(directory / LEASE)
    disk.write_atomic(directory / OWNER, [encode_json(asdict(owner)), b"\n"])
    show_life(disk, directory, at=owner.started_at)


def sign_off(disk: Disk, directory: Path, owner: Owner) -> None:
    """Remove the note, unless it has become another process's."""
    if read_owner(disk, directory) == owner:
        disk.remove(directory / OWNER)
        disk.remove(directory / LEASE)


def show_life(disk: Disk, directory: Path, *, at: str) -> None:
    """Leave a sign of life. Closing the file each time makes it visible to other machines."""
    lease = disk.open_append(directory / LEASE)
    try:
        disk.append(lease, at.encode("ascii") + b"\n")
    finally:
        disk.close(lease)


def signs_of_life(disk: Disk, directory: Path) -> bytes:
    """All signs so far: bytes that change while the owner lives."""
    return b"".join(disk.chunks(directory / LEASE))


def last_sign_of_life(disk: Disk, directory: Path) -> str | None:
    """The time of the last sign, by the owner's clock."""
    signs = signs_of_life(disk, directory).split()
    return signs[-1].decode("ascii", "replace") if signs else None


def is_alive(owner: Owner, machine: Machine) -> bool | None:
    """Whether the process still exists; None where this machine cannot know.

    Where the system does not say when a process started, its number decides alone.
    """
    if owner.machine != machine.identity:
        return None
    start = machine.process_start(owner.pid)
    return start is not None and (start == owner.process_start or "" in {start, owner.process_start})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who left a note in a directory, whether that process is alive as far as known, and when it last showed life."""

    owner: Owner | None = None
    is_alive: bool | None = None
    last_sign_of_life: str | None = None

    @property
    def may_work(self) -> bool:
        """Whether a process is at work; where this machine cannot know, it is taken to be."""
        return self.owner is not None and self.is_alive is not False


def holder_of(disk: Disk, directory: Path, machine: Machine) -> Holder:
    owner = read_owner(disk, directory)
    alive = None if owner is None else is_alive(owner, machine)
    return Holder(owner=owner, is_alive=alive, last_sign_of_life=last_sign_of_life(disk, directory))


def most_alive(disk: Disk, directories: Iterable[Path], machine: Machine) -> Holder:
    """Of those who left notes in some directories the first that is alive, else that may be, else that is dead."""
    ranks = {True: 3, None: 2, False: 1}

    def rank(holder: Holder) -> int:
        return 0 if holder.owner is None else ranks[holder.is_alive]

    return max((holder_of(disk, directory, machine) for directory in directories), key=rank)


@dataclass(slots=True)
class _Watched:
    """What was seen of an owner's signs of life, and for how long it has been the same."""

    signs: bytes
    looked_at_s: float
    silent_s: float = 0.0


class LeaseWatch:
    """Judges owners on other machines by their signs of life, over several looks. The caller passes the time.

    A clock that leaps, as after a sleep of this machine, says nothing about an owner: a leap counts as one look.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, _Watched] = {}

    def look(self, directory: Path, signs: bytes, now_s: float) -> bool | None:
        """Whether the owner of a directory lives; None while that is not known.

        It lives if its signs have changed since the last look. It is dead if they have been the same for
        `LEASE_PERIODS`.
        """
        seen = self._seen.get(directory)
        if seen is None or seen.signs != signs:
            self._seen[directory] = _Watched(signs, now_s)
            return None if seen is None else True
        seen.silent_s += min(now_s - seen.looked_at_s, 2 * LEASE_LOOK_INTERVAL_S)
        seen.looked_at_s = now_s
        return False if seen.silent_s >= LEASE_PERIODS * LEASE_INTERVAL_S else None


class RunLock:
    """The lock on a run directory, which is made if missing; held from construction until `release` or `back_out`.

    Raises RunLockedError naming the owner when another process holds it: at once, or, for an owner on another machine
    of a network filesystem, after it has shown life. With `watch` it never waits: such an owner counts as alive until
    looks of this kind have found it dead. `is_guarded` says that the caller holds the lock of a directory around this
    one. `rivals` gives the directories in which a live process keeps this one out as well: it leaves its note before it
    looks there, as they do. `say` receives what may surprise or takes time.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        clock: Clock | None = None,
        machine: Machine | None = None,
        wait: Callable[[float], None] = pause,
        say: Callable[[str], None] = lambda _line: None,
        is_guarded: bool = False,
        watch: LeaseWatch | None = None,
        rivals: Callable[[], Iterable[Path]] = tuple,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock or SystemClock()
        self._machine = machine or Machine()
        self._wait = wait
        self._say = say
        self._watch = watch
        self.network_filesystem: str | None = None
        """The type of the filesystem, where several machines share it."""
        self._is_new = not disk.exists(directory / LOCK)
        self._made = [place for place in (directory, *directory.parents) if not disk.exists(place)]
        self._lock = _lock_at(directory / LOCK)
        try:
            disk.make_directory(directory)
            _acquire(disk, directory / LOCK, self._lock, lambda: _taken(directory, read_owner(disk, directory)))
            self._owner = this_process(self._machine, started_at=iso(self._clock.utc_now()))
            if not is_guarded:
                self._look_around()
            sign(disk, directory, self._owner)
            self._shown_at_s = self._clock.monotonic_s()
            self._yield_to(rivals())
        except BaseException:
            self.back_out()
            raise

    def show_life_if_due(self) -> None:
        """Leave a sign of life if the last one is `LEASE_INTERVAL_S` old. For the writer thread."""
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_at_s >= LEASE_INTERVAL_S:
            self._shown_at_s = now_s
            show_life(self._disk, self._directory, at=iso(self._clock.utc_now()))

    def sign_off(self) -> None:
        sign_off(self._disk, self._directory, self._owner)

    def release(self) -> None:
        """Let the next process in; safe to call twice, and even when the disk hangs."""
        self._lock.release()

    def back_out(self) -> None:
        """Let the next process in, and leave a place in which nothing was written as it was found.

        If a broken lock has let another process in, it has left its note: that process may rest on what is here.
        """
        try:
            with suppress(StoreError):
                if self._lock.is_locked and read_owner(self._disk, self._directory) in (None, self._owner):
                    self.sign_off()
                    if self._is_new:
                        self._disk.remove(self._directory / LOCK)
                for place in filter(self._disk.is_directory, self._made):
                    self._disk.remove_directory(place)  # Refused by the system where there is anything in it.
        finally:
            self._lock.release()

    def _look_around(self) -> None:
        """On a network filesystem, trust the owner's note more than the lock. Raises RunLockedError."""
        kind = self._machine.filesystem(self._directory)
        if not is_network(kind):
            return
        self.network_filesystem = kind
        if self._watch is None:
            self._say(
                f"{self._directory} is on a network filesystem ({kind}), where locks may fail: run it from one process "
                "at a time. Two would lose nothing, and do work twice"
            )
        self._yield_to([self._directory])

    def _yield_to(self, directories: Iterable[Path]) -> None:
        """Raises RunLockedError where whoever left a note in one of the directories is alive."""
        unknown, dead = dict[Path, Owner](), dict[Path, Owner]()
        for directory in directories:
            if (owner := read_owner(self._disk, directory)) is None:
                continue
            if alive := is_alive(owner, self._machine):
                raise _taken(directory, owner)
            if alive is None:
                unknown[directory] = owner
            else:
                dead[directory] = owner
        if (living := self._living(unknown)) is not None:
            raise _taken(living, unknown[living])
        for directory, owner in (dead | unknown).items():
            if directory != self._directory:
                # The next one need not wait for it again. Whoever leaves another note there sees ours, and backs out.
                sign_off(self._disk, directory, owner)

    def _living(self, unknown: Mapping[Path, Owner]) -> Path | None:
        """The place of one of several owners on other machines that may live.

        Without a watch of others they are watched for `LEASE_PERIODS`, by our own clock.
        """
        if self._watch is not None:
            looks = {directory: self._look(self._watch, directory) for directory in unknown}
            return next((directory for directory, alive in looks.items() if alive is not False), None)
        left, watch = [*unknown], LeaseWatch()
        if left:
            owner = unknown[left[0]]
            self._say(f"waiting {LEASE_PERIODS * LEASE_INTERVAL_S:.0f} s to see whether it is still run by {owner}")
        while left:
            looks = {directory: self._look(watch, directory) for directory in left}
            if (living := next((directory for directory, alive in looks.items() if alive), None)) is not None:
                return living
            if left := [directory for directory, alive in looks.items() if alive is None]:
                self._wait(LEASE_LOOK_INTERVAL_S)
        return None

    def _look(self, watch: LeaseWatch, directory: Path) -> bool | None:
        return watch.look(directory, signs_of_life(self._disk, directory), self._clock.monotonic_s())


class LockAbove:
    """In the place of a lock, where the caller holds that of the directory around a run."""

    network_filesystem: str | None = None

    def show_life_if_due(self) -> None:
        """Whoever holds the lock does."""

    def sign_off(self) -> None:
        """There is no note."""

    def release(self) -> None:
        """There is nothing to release."""

    def back_out(self) -> None:
        """There is nothing to leave."""


@contextmanager
def only_holder(disk: Disk, path: Path, taken: Callable[[], str]) -> Iterator[None]:
    """Hold the lock file `path`, which stays behind. Raises RunLockedError with `taken()` when another process does.

    The kernel drops the lock with the process, so it is held exactly as long as the holder lives.
    """
    lock = _lock_at(path)
    _acquire(disk, path, lock, lambda: RunLockedError(taken()))
    try:
        yield
    finally:
        lock.release()


def _lock_at(path: Path) -> FileLock:
    """A lock of the process, not of a thread: a run may be opened on one thread and closed on another."""
    return FileLock(path, blocking=False, thread_local=False)


def _acquire(disk: Disk, path: Path, lock: FileLock, taken: Callable[[], RunLockedError]) -> None:
    disk.check_regular(path)  # The library would wait for a FIFO, and empty the target of a link.
    try:
        lock.acquire()
    except Timeout:
        raise taken() from None
    except OSError as fault:
        raise StoreError(f"cannot lock {path}: {fault}; check that it can be written") from fault


def _taken(directory: Path, owner: Owner | None) -> RunLockedError:
    """The error for a run that comes second, in another process or in this one."""
    if owner is not None and owner.pid == os.getpid():
        fact = f"{directory} is being run already by this process: {owner}"
        return RunLockedError(fact, "wait for that run, or choose another `out`")
    who = " that has not left its name yet" if owner is None else f": {owner}"
    fact = f"{directory} is being run by another process{who}"
    return RunLockedError(fact, "wait for it, stop it, or choose another directory with --out")
