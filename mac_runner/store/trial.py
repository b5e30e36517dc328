"""A disk on trial: what a start has changed, it can take back.

A start that is refused (no room, no engine, a setting that an engine refuses) leaves a run directory as it found it.
Until the start is settled, whatever takes the place of a file keeps the old one under a temporary name, and what is new
is noted. `withdraw` goes back step by step, last step first, so at every moment the directory is as a start that was
killed leaves it, which the next start copes with. A kill leaves temporary files, which the next start sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from mac_runner.errors import StoreError
from mac_runner.store.disk import TEMPORARY_PREFIX, Disk, OpenFile
from mac_runner.store.layout import lock_path
from mac_runner.store.lock import RunLock


class TrialDisk(Disk):
    """Does what `disk` does, and can take it back until `settle`."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.system)
        self._steps: list[Callable[[], None]] | None = []
        self._kept: set[Path] = set()

    def settle(self) -> None:
        """Let what was done stand."""
        self._steps = None
        for kept in self._kept:
            with suppress(StoreError):
                super().remove(kept)
        self._kept.clear()

    def withdraw(self) -> None:
        """Take back all that was done and is not settled, as far as the disk lets it.

        What cannot be taken back is left with all that was done before it, which it may rest on.
        """
        steps, self._steps = self._steps or [], None
        with suppress(StoreError):
            for step in reversed(steps):
                step()
        self._kept.clear()

    @property
    def step(self) -> int:
        """How many steps have been noted."""
        return len(self._steps or ())

    def note_created(self, path: Path, *, at: int | None = None) -> None:
        """Note a file that is new, as the last step, or as an earlier one: it is then removed after those behind it."""
        if self._steps is not None:
            self._steps.insert(len(self._steps) if at is None else at, lambda: self._remove_durably(path))

    # A call may fail with its work half done. So each step is noted first, and taking back what never came is harmless.

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, each of them noted."""
        if self._steps is not None and not self.exists(path):
            self.make_directory(path.parent)
            self._steps.append(lambda: self._remove_durably(path))
        super().make_directory(path)

    def create(self, path: Path) -> OpenFile | None:
        """A new file to append to, noted."""
        self._note_if_new(path)
        return super().create(path)

    def open_append(self, path: Path) -> OpenFile:
        """A file to append to; a new one is noted. What is appended to one that was there is not taken back."""
        self._note_if_new(path)
        return super().open_append(path)

    def write_atomic(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Put a file in the place of `path`, the old one kept."""
        self._keep(path)
        super().write_atomic(path, pieces)

    def publish_once(self, path: Path, data: bytes) -> bool:
        """Give a durable file the name `path` unless it is taken, noted."""
        self._note_if_new(path)
        return super().publish_once(path, data)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file to a name that is free, noted."""
        if self._steps is not None:
            self._steps.append(lambda: None if self.exists(source) else Disk.rename(self, target, source))
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a name, the file kept."""
        if not path.name.startswith(TEMPORARY_PREFIX) and self.exists(path):
            self._keep(path)
        super().remove(path)

    def is_stray(self, path: Path) -> bool:
        """Whether nobody needs a temporary file: what is kept here is needed."""
        return path not in self._kept and super().is_stray(path)

    def _note_if_new(self, path: Path) -> None:
        if self._steps is not None and not self.exists(path):
            self.note_created(path)

    def _keep(self, path: Path) -> None:
        """Keep what stands at `path` for as long as it may have to come back; or note that nothing does."""
        if self._steps is None:
            return
        kept = self.keep(path)
        if kept is None:
            self.note_created(path)
            return
        self._kept.add(kept)
        self._steps.append(lambda: self._put_back(kept, path))

    def _remove_durably(self, path: Path) -> None:
        """Take back what is new, before anything that it may rest on: after a power cut, too, that was there longer."""
        if not self.exists(path):
            return
        if self.is_directory(path):
            self.remove_directory(path)
        else:
            Disk.remove(self, path)
        self.sync_directory(path.parent)

    def _put_back(self, kept: Path, path: Path) -> None:
        Disk.rename(self, kept, path)
        # Two names of one file are left alone by a rename: nothing has taken the name.
        Disk.remove(self, kept)


def lock_on_trial(trial: TrialDisk, directory: Path, lock: Callable[[], RunLock]) -> RunLock:
    """The lock on a directory, which is made where there is none. Where it is refused, all is as before."""
    try:
        trial.make_directory(directory)
        step = trial.step
        locked = lock()
    except BaseException:
        trial.withdraw()
        raise
    if locked.is_new:
        # Removed last of all that is in the directory: whoever is let in then finds it as it was.
        trial.note_created(lock_path(directory), at=step)
    return locked


def back_out(trial: TrialDisk, lock: RunLock) -> None:
    """Take back all that was done since the directory was locked, and let the next process in.

    Where a lock that broke has let another process in, it may rest on what was done, and all of it stands.
    """
    try:
        trial.withdraw() if lock.is_signed() else trial.settle()
    finally:
        lock.release()
