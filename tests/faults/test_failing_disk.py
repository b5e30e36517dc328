"""Every operation of the disk fails, one by one, once or from then on: nothing is acknowledged that is not there."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, writer
from tests.faults.crashfs import CrashDisk, Fate
from tests.faults.test_crashes import Promised, check_whole, examine, transcripts_in
from tests.store import player

CONVERSATIONS = 3


class Fault(NamedTuple):
    """How an operation fails; `is_short` lets a write take half of its bytes first."""

    code: int
    is_lasting: bool
    is_short: bool = False


class FailingDisk(CrashDisk):
    """Its `nth` call is the first to fail; `calls` counts them."""

    def __init__(self, root: Path, nth: int, fault: Fault) -> None:
        super().__init__(root)
        self.calls = 0
        self._nth = nth
        self._fault = fault
        self.before = self._count
        self.short_write = self._shorten

    @property
    def has_failed(self) -> bool:
        return self.calls >= self._nth

    def _count(self, call: str, path: Path) -> None:
        self.calls += 1
        is_spared = self._fault.is_short and call == "write" and self.calls == self._nth
        if not is_spared and (self.calls == self._nth or (self.has_failed and self._fault.is_lasting)):
            raise OSError(self._fault.code, os.strerror(self._fault.code))

    def _shorten(self) -> int | None:
        return 9 if self._fault.is_short and self.has_failed else None


FAULTS = [
    Fault(errno.EIO, is_lasting=False),
    pytest.param(Fault(errno.EDQUOT, is_lasting=False), marks=pytest.mark.nightly),
    Fault(errno.ENOSPC, is_lasting=True),
    Fault(errno.ENOSPC, is_lasting=True, is_short=True),
]


def attempt(disk: CrashDisk, run_dir: Path) -> Promised:
    """Play until the disk fails; what was promised by then."""
    try:
        run = player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk))
    except StoreError:
        return Promised(results=0, steps=0)
    with suppress(StoreError), run:
        player.play(run)
        run.contents()
        run.write_summary({})
    return Promised(results=run.written, steps=0)


@pytest.mark.ci
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_operation_that_fails_costs_nothing_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Afterwards the disk is what it was before or what it was to become, whether the process ends or the power too."""
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    run_dir = tmp_path / "run"
    undisturbed = CrashDisk(tmp_path)
    attempt(undisturbed, run_dir)
    expected = transcripts_in(undisturbed.files())

    for nth in count(1):
        disk = FailingDisk(tmp_path, nth, fault)
        promised = attempt(disk, run_dir)
        if not disk.has_failed:
            break
        assert disk.resynced == []
        fate: Fate = ("keep", "drop", Random(nth))[nth % 3]
        examine(disk.crash(fate), run_dir, promised, expected)
        disk.before, disk.short_write = None, lambda: None
        examine(disk, run_dir, promised, expected)
        if nth % 20 == 0:
            check_whole(disk, run_dir, expected)
    assert nth > 60


def test_short_write_is_carried_on_and_nothing_is_lost(tmp_path: Path) -> None:
    disk, run_dir = CrashDisk(tmp_path), tmp_path / "run"
    disk.short_write = lambda: 7
    player.played(run_dir, CONVERSATIONS, disk=Disk(disk))
    found = disk.crash("drop")

    assert transcripts_in(found.files()) == transcripts_in(disk.files())
    check_whole(found, run_dir, transcripts_in(disk.files()))


def test_failed_sync_is_never_tried_again(tmp_path: Path) -> None:
    """The kernel may have dropped the bytes and report success the next time: the file is given up."""
    disk = CrashDisk(tmp_path)
    failed: list[str] = []

    def fail_first_sync(call: str, path: Path) -> None:
        assert not failed or call not in {"write", "fsync"}, f"{call} of {path.name} after the failed sync"
        if call == "fsync":
            failed.append(path.name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    run = player.open_toy(tmp_path / "run", 1, disk=Disk(disk))
    disk.before = fail_first_sync
    player.play(run)
    with pytest.raises(StoreError, match="cannot sync"):
        run.close()

    assert failed == ["000001.jsonl"]
    assert run.written == 0
    assert transcripts_in(disk.files()) == {}
