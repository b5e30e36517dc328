"""A toy run, a clock that stands still, and a system that keeps a log and fails on demand."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mac_runner.store import Disk, System
from mac_runner.store.testing import THREAD_NAME
from tests.faults.tier import one_in
from tests.patience import LIMIT_S


class StillClock:
    """Time goes on only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def utc_now(self) -> datetime:
        return datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


class FaultySystem(System):
    """The operating system with a log of its calls; from the `fail_at`-th changing call on, every one fails.

    With `is_once` no other one does.
    `gate`, when set, is called before each changing call.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail_at: int | None = None
        self.is_once = False
        self.fault = 28
        self.gate: Callable[[str, str], object] | None = None
        self.file_names: dict[int, str] = {}

    def _note(self, call: str, name: str) -> None:
        if self.gate is not None:
            self.gate(call, name)
        self.calls.append((call, name))
        count = len(self.calls)
        if self.fail_at is not None and (count == self.fail_at if self.is_once else count >= self.fail_at):
            raise OSError(self.fault, os.strerror(self.fault))

    def open_read(self, path: Path) -> int:
        descriptor = super().open_read(path)
        self.file_names[descriptor] = path.name
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        self._note("write", self.file_names[descriptor])
        return super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._note("fsync", self.file_names.get(descriptor, ""))
        super().fsync(descriptor)


def _noted(call: str) -> Callable[..., object]:
    """A call that is noted by the name of its last path; a descriptor that it opens is known by that name."""

    def noted(system: FaultySystem, *paths: Path) -> object:
        system._note(call, paths[-1].name)
        found = getattr(System, call)(system, *paths)
        if isinstance(found, int):
            system.file_names[found] = paths[-1].name
        return found

    return noted


for _call in ("create", "open_append", "link", "replace", "unlink", "make_directory", "fsync_directory"):
    setattr(FaultySystem, _call, _noted(_call))


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def system() -> FaultySystem:
    return FaultySystem()


@pytest.fixture
def disk(system: FaultySystem) -> Disk:
    return Disk(system)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "toy"


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file under a directory, with its time of change and contents."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def files(directory: Path) -> dict[str, bytes]:
    """The files right in a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def both(*harms: Callable[[Path], object]) -> Callable[[Path], None]:
    """One harm after the other."""

    def harm(path: Path) -> None:
        for each in harms:
            each(path)

    return harm


def flip(data: bytes) -> bytes:
    """One bit in the middle is another."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def edit_journal(run_dir: Path, change: Callable[[bytes], bytes]) -> None:
    for segment in (run_dir / "journal").iterdir():
        edit(segment, change)


def lose_frames(run_dir: Path, *marks: bytes) -> None:
    """Take out of the journal what a kill, or damage, has lost: the frames that hold one of these."""

    def kept(data: bytes) -> bytes:
        return b"".join(line for line in data.splitlines(True) if not any(mark in line for mark in marks))

    edit_journal(run_dir, kept)


def lose_endings(run_dir: Path, *task_ids: str) -> None:
    """Lose the frames that say that tasks are done, as a kill between publication and acknowledgement does."""
    lose_frames(run_dir, *(b'"%b","kind":"done"' % task_id.encode() for task_id in task_ids))


def join_writer() -> None:
    """Wait for the thread of a writer that was closed and may be at work still."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(LIMIT_S)


def failing_calls(system: FaultySystem, undisturbed: Callable[[], object]) -> Iterator[int]:
    """Of the calls that change the disk one in three by day: its number, with the system failing from it on."""
    system.calls.clear()
    undisturbed()
    for fail_at in one_in(3, range(1, len(system.calls) + 1)):
        system.calls.clear()
        system.fail_at = fail_at
        yield fail_at
