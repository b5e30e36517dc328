"""One process per run directory.

A lock on a file that is never removed (removing it would let two processes hold locks on two files of one name), and
beside it a note of who holds it, for the message to whoever comes second. The kernel drops the lock with the process,
however it ends, so nothing ever has to be cleaned up and no dead owner is ever waited for. On a filesystem whose locks
do not work the store stays correct all the same: sessions have journal segments of their own, and results are published
once.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from mac_runner.errors import RunLockedError, StoreError
from mac_runner.store.disk import Disk
from mac_runner.store.frames import encode_json
from mac_runner.store.layout import lock_path, owner_path


class RunLock:
    """The lock on a run directory, held from construction until `release`.

    Raises RunLockedError at once, naming the owner, when another process holds it.
    """

    def __init__(self, disk: Disk, directory: Path, *, started_at: str) -> None:
        self._disk = disk
        self._directory = directory
        # A run is opened on one thread and may be closed on another: the lock is the process's, not the thread's.
        self._lock = FileLock(lock_path(directory), blocking=False, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise RunLockedError(_who(disk, directory)) from None
        except OSError as fault:
            raise StoreError(f"cannot lock {lock_path(directory)}: {fault}; check that it can be written") from fault
        try:
            self._sign(started_at)
        except StoreError:
            self._lock.release()
            raise

    def sign_off(self) -> None:
        """Remove the note of who holds the lock, which has done its work."""
        self._disk.remove(owner_path(self._directory))

    def release(self) -> None:
        """Let the next process in; safe to call twice, and even when the disk hangs."""
        self._lock.release()

    def _sign(self, started_at: str) -> None:
        owner = encode_json(
            {
                "pid": os.getpid(),
                "host": platform.node(),
                "started_at": started_at,
                "command": " ".join(sys.argv),
            }
        )
        self._disk.write_atomic(owner_path(self._directory), [owner, b"\n"])


def _who(disk: Disk, directory: Path) -> str:
    """The text for whoever comes second."""
    what = f"{directory} is being run by another process"
    try:
        owner = json.loads(disk.read(owner_path(directory)))
        what += f": pid {owner['pid']} on {owner['host']} since {owner['started_at']} ({owner['command']})"
    except (StoreError, ValueError, TypeError, KeyError):
        what += " that has not left its name yet"
    return f"{what}; wait for it, stop it, or choose another directory with --out"
