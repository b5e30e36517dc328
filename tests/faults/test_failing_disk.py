"""The disk fails or fills up, memory runs out, bytes change: nothing is acknowledged that is not there."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple, TypeAlias

import pytest

from mac_runner.cli.checks import Verify
from mac_runner.cli.process import Exit
from mac_runner.clock import Clock
from mac_runner.errors import ConversationError, OutOfMemoryError, StoreError, boundary
from mac_runner.store import Disk, read_run, writer
from mac_runner.store.testing import entry
from tests.cli.lab import RunDir, environ
from tests.faults.crashfs import CrashDisk, Fate
from tests.faults.forking import Extras, Forking
from tests.faults.talks import Talks
from tests.faults.test_crashes import (
    CONVERSATIONS,
    Promised,
    check_whole,
    examine,
    is_beginning_of_play,
    transcripts_in,
)
from tests.kit import stale_files
from tests.patience import LIMIT_S
from tests.store import player
from tests.store.conftest import StillClock


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


def attempt(disk: CrashDisk, run_dir: Path, clock: Clock | None = None) -> Promised:
    """Play until something fails; what was promised by then. Where time goes on, some code is run only now and then."""
    try:
        run = player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk), clock=clock)
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

    run = player.begun(player.open_toy(tmp_path / "run", 1, disk=Disk(disk)))
    disk.before = fail_first_sync
    player.play(run)
    with pytest.raises(StoreError, match="cannot sync"):
        run.close()

    assert failed == ["000001.jsonl"]
    assert run.written == 0
    assert transcripts_in(disk.files()) == {}


STORE = str(Path(writer.__file__).parent)

Tracer: TypeAlias = Callable[[FrameType, str, object], object]

Site: TypeAlias = tuple[str, int]


@contextmanager
def tracing_the_writer(tracer: Tracer) -> Iterator[None]:
    """Threads that are started inside the block, the writer's above all, run under `tracer`."""
    before, here = threading.gettrace(), sys.gettrace()
    threading.settrace(tracer)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(before)
    # A tool that traces tests would be in the way, and must not be lost either.
    assert sys.gettrace() is here


def lines_of_commit(told: Callable[[Site], None]) -> Tracer:
    """Tells of every line of the store that is run while a batch is committed."""

    def tracer(frame: FrameType, event: str, _value: object) -> object:
        if not frame.f_code.co_filename.startswith(STORE) or not is_committing(frame):
            return tracer if frame.f_code.co_name in {"_work", "_bootstrap_inner", "run"} else None
        if event == "line":
            told((frame.f_code.co_filename, frame.f_lineno))
        return tracer

    return tracer


def is_committing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in {"commit", "finish"}:
            return True
        frame = frame.f_back
    return False


# What is raised where a reader of the journal is let go of has nobody who could hear of it.
@pytest.mark.parametrize(
    "every", [pytest.param(3, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_memory_error_on_any_line_of_a_commit_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    run_dir, sites = tmp_path / "run", dict[Site, None]()
    undisturbed = CrashDisk(tmp_path)
    with tracing_the_writer(lines_of_commit(sites.setdefault)):
        attempt(undisturbed, run_dir, clock=StillClock())
    expected = transcripts_in(undisturbed.files())
    assert len(sites) > 60

    for nth, site in enumerate([*sites][::every]):
        disk, raised = CrashDisk(tmp_path), list[Site]()

        def raise_once(found: Site, site: Site = site, raised: list[Site] = raised) -> None:
            if found == site:
                assert not raised, f"{found} was tried again"
                raised.append(found)
                raise MemoryError

        with tracing_the_writer(lines_of_commit(raise_once)):
            promised = attempt(disk, run_dir, clock=StillClock())
        assert raised == [site]
        examine(disk.crash("keep" if nth % 2 else "drop"), run_dir, promised, expected)
        if nth % 20 == 0:
            check_whole(disk, run_dir, expected)


def test_writer_without_memory_tells_so_and_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> bytes:
        raise MemoryError

    run = player.open_toy(tmp_path / "run", 1, disk=Disk(CrashDisk(tmp_path)))
    monkeypatch.setattr("mac_runner.store.journal.encode_frame", no_memory)
    player.play(run)

    with pytest.raises(StoreError, match="no memory left"):
        run.close()
    assert run.written == 0


def test_memory_error_in_foreign_code_is_not_laid_at_its_door() -> None:
    """A conversation that fails stays failed for ever; one that met the end of memory must not."""
    with pytest.raises(OutOfMemoryError, match="turn 1: no memory"), boundary(ConversationError, "turn 1"):
        raise MemoryError


@pytest.mark.ci
def test_process_that_may_have_no_more_memory_ends_resumably(tmp_path: Path, forking: Forking) -> None:
    talks = Talks(conversations=20, out=tmp_path / "tight")

    ended = forking.ended(forking.start(*talks.args(), extras=Extras(spare_memory_mib=64)))

    assert ended.code == Exit.INTERRUPTED, ended.err
    assert "no memory left" in ended.err
    assert "Traceback" not in ended.err
    assert Verify(directory=talks.out).work() == Exit.OK
    assert all(row["status"] == "finished" for row in talks.run_dir.index)
    assert forking.run(*talks.args()).code == Exit.OK
    assert talks.run_dir.statuses == {"finished": 20}


MANY = 100


PROGRAM = """
from mac_runner.cli import main
from mac_runner.store import writer
writer.WRITE_BACKLOG_ITEMS_MAX = 1
main()
"""
"""Commits come one after the other, not all at once."""

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


SCRIPT = """
set -u
mount -t tmpfs -o size=64m tmpfs {disk}
head -c 63000K /dev/zero > {disk}/others
{run}; echo "full $?"
cp -a {out} {kept}
{run}; echo "still full $?"
rm {disk}/others
{run}; echo "room again $?"
cp -a {out} {ended}
"""


@pytest.mark.ci
def test_disk_that_fills_up_costs_nothing_acknowledged_and_the_run_ends_once_there_is_room(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "x", "/mnt"]).returncode:
        pytest.skip("this user may not mount; tests/cli/test_shortages.py fills files up instead")
    disk, kept, ended = tmp_path / "disk", tmp_path / "kept", tmp_path / "ended"
    disk.mkdir()
    args = Talks(conversations=MANY, out=disk / "run").args()
    run = shlex.join([sys.executable, "-c", PROGRAM, *args, "--quiet"])
    script = SCRIPT.format(disk=disk, run=run, out=disk / "run", kept=kept, ended=ended)

    process = subprocess.run(
        [*NAMESPACE, "sh", "-c", script], env=environ(), capture_output=True, text=True, timeout=LIMIT_S, check=True
    )

    full = Exit.STORAGE_FAILED
    assert process.stdout.splitlines() == [f"full {full}", f"still full {full}", f"room again {Exit.OK}"]
    told = process.stderr.splitlines()
    assert len(told) == 2
    # The second start is refused for want of room where clearing up left a little of it.
    assert "(ENOSPC)" in told[0]
    assert "(ENOSPC)" in told[1] or "are missing" in told[1]
    assert all("conversations left need" in line for line in told)
    rows = [*read_run(kept).rows()]
    assert 0 < len(rows) < MANY
    for row in rows:
        transcript = kept / entry(row, "transcript", str)
        assert hashlib.sha256(transcript.read_bytes()).hexdigest() == row["sha256"]
        assert (ended / entry(row, "transcript", str)).read_bytes() == transcript.read_bytes()
    assert RunDir(path=ended).statuses == {"finished": MANY}
    assert Verify(directory=ended).work() == Exit.OK


STEP_BYTES = 37


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrashDisk:
    """A run of which two conversations have ended and one is half done."""
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    disk = CrashDisk(tmp_path)
    player.played(tmp_path / "run", CONVERSATIONS, disk=Disk(disk), turns=2 * player.TURNS + 2)
    return disk


@pytest.mark.ci
def test_altered_byte_of_the_journal_costs_one_task_and_no_result(tmp_path: Path, played: CrashDisk) -> None:
    """A lost note of an ending is made up for by the transcript itself: it is adopted and not played again."""
    segment, run_dir = tmp_path / "run/journal/000001.jsonl", tmp_path / "run"
    whole = played.files()["run/journal/000001.jsonl"]
    transcripts = transcripts_in(played.files())
    for position in range(0, len(whole), STEP_BYTES):
        disk = played.crash("keep")
        disk.overwrite(segment, whole[:position] + bytes([whole[position] ^ 0x02]) + whole[position + 1 :])
        with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk)) as run:
            assert run.counts.done == 2
            ((task, replies),) = run.unfinished()
            assert is_beginning_of_play(task, replies)

        assert transcripts_in(disk.files()) == transcripts
        report = player.verified(run_dir, disk=Disk(disk))
        assert (report.lost, report.unexpected, report.mismatched) == (0, 0, 0)
        assert stale_files(run_dir, disk=Disk(disk)) == []
        assert report.damaged == 1
