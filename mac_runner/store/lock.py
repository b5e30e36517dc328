"""One process per run directory.

A lock on a file that is never removed (removing it would let two processes hold locks on two files of one name), and
beside it a note of who holds it, for the message to whoever comes second. The kernel drops the lock with the process,
however it ends, so nothing ever has to be cleaned up and no dead owner is ever waited for.

On a network filesystem the lock alone is not believed: it may hold on one machine only, or be lost without a word.
There the note has a say too (`owner`): whoever is found alive is left alone, and an owner on another machine is given
time to show life. Should two be let in all the same, the store stays correct: sessions have journal segments of their
own, results are published once, and work done twice is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from mac_runner import limits
from mac_runner.clock import Clock, SystemClock, iso, pause
from mac_runner.errors import RunLockedError, StoreError
from mac_runner.store.disk import Disk
from mac_runner.store.layout import lock_path
from mac_runner.store.machine import Machine, is_network
from mac_runner.store.owner import (
    Owner,
    is_alive,
    read_owner,
    show_life,
    sign,
    sign_off,
    signs_of_life,
    this_process,
)


class RunLock:
    """The lock on a run directory, held from construction until `release`.

    Raises RunLockedError naming the owner when another process holds it: at once, or on a network filesystem, where
    the owner is on another machine, after it has shown life. A directory `is_guarded` where its user already holds
    the lock of one around it.
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
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._clock = clock or SystemClock()
        self._machine = machine or Machine()
        self._wait = wait
        self._say = say
        self.network_filesystem: str | None = None
        """The type of the filesystem, where it is one that several machines share."""
        # A run is opened on one thread and may be closed on another: the lock is the process's, not the thread's.
        self.is_new = not disk.exists(lock_path(directory))
        """Whether there was no file to lock before."""
        disk.check_regular(lock_path(directory))  # The library would wait for a FIFO, and empty what a link leads to.
        self._lock = FileLock(lock_path(directory), blocking=False, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise RunLockedError(_taken(directory, read_owner(disk, directory))) from None
        except OSError as fault:
            raise StoreError(f"cannot lock {lock_path(directory)}: {fault}; check that it can be written") from fault
        try:
            if not is_guarded:
                self._look_around()
            self._owner = this_process(self._machine, started_at=iso(self._clock.utc_now()))
            sign(disk, directory, self._owner)
            self._shown_at_s = self._clock.monotonic_s()
        except BaseException:
            if self.is_new:
                with suppress(StoreError):
                    Disk.remove(disk, lock_path(directory))  # For good, also on trial.
            self._lock.release()
            raise

    def show_life_if_due(self) -> None:
        """Leave a sign of life, if the last one is LEASE_INTERVAL_S old; for the thread that writes."""
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_at_s >= limits.LEASE_INTERVAL_S:
            self._shown_at_s = now_s
            show_life(self._disk, self._directory, at=iso(self._clock.utc_now()))

    def is_signed(self) -> bool:
        """Whether the note of who is at work is still this process's: no other was let in by a lock that broke."""
        return read_owner(self._disk, self._directory) == self._owner

    def sign_off(self) -> None:
        """Remove the note of who holds the lock, which has done its work."""
        sign_off(self._disk, self._directory, self._owner)

    def release(self) -> None:
        """Let the next process in; safe to call twice, and even when the disk hangs."""
        self._lock.release()

    def _look_around(self) -> None:
        """On a network filesystem, believe the owner's note more than the lock. Raises RunLockedError."""
        kind = self._machine.filesystem(self._directory)
        if not is_network(kind):
            return
        self.network_filesystem = kind
        self._say(
            f"{self._directory} is on a network filesystem ({kind}), where locks may fail: run it from one process at "
            "a time. Two would lose nothing, and do work twice"
        )
        owner = read_owner(self._disk, self._directory)
        if owner is None:
            return
        alive = is_alive(owner, self._machine)
        if alive or (alive is None and self._shows_life(owner)):
            raise RunLockedError(_taken(self._directory, owner))

    def _shows_life(self, owner: Owner) -> bool:
        """Watch an owner on another machine for LEASE_PERIODS, by our own clock.

        A clock that leaps, as after a sleep of this machine, says nothing of the owner: a leap counts as one look.
        """
        patience_s = limits.LEASE_PERIODS * limits.LEASE_INTERVAL_S
        self._say(f"waiting {patience_s:.0f} s to see whether it is still run by {owner}")
        before, watched_s, looked_at_s = signs_of_life(self._disk, self._directory), 0.0, self._clock.monotonic_s()
        while watched_s < patience_s:
            self._wait(limits.LEASE_LOOK_INTERVAL_S)
            if signs_of_life(self._disk, self._directory) != before:
                return True
            now_s = self._clock.monotonic_s()
            watched_s += min(now_s - looked_at_s, 2 * limits.LEASE_LOOK_INTERVAL_S)
            looked_at_s = now_s
        return False


@contextmanager
def locked(disk: Disk, directory: Path) -> Iterator[None]:
    """Hold the lock on a directory. Raises RunLockedError naming the owner when another process holds it."""
    lock = RunLock(disk, directory)
    try:
        yield
        lock.sign_off()
    finally:
        lock.release()


def _taken(directory: Path, owner: Owner | None) -> str:
    """The text for whoever comes second."""
    who = " that has not left its name yet" if owner is None else f": {owner}"
    return (
        f"{directory} is being run by another process{who}; wait for it, stop it, or choose another directory with "
        "--out"
    )
