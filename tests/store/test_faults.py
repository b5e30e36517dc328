"""Failing disks and killed processes: what was acknowledged is there, and running again makes it whole."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, Run, read_run, verify_run, writer
from mac_runner.types import JsonObject
from tests.patience import LIMIT_S
from tests.store import player
from tests.store.conftest import FaultySystem

CONVERSATIONS = 4


def check_whole(run_dir: Path, n: int) -> None:
    """Running again finishes the run, and the checker finds nothing wrong."""
    with player.open_toy(run_dir, n) as run:
        player.play(run)
        run.write_summary({})
    report = verify_run(run_dir, rebuild=player.rebuild)
    assert report.findings == ()
    assert (report.attempted, report.acknowledged) == (n, n)
    assert player.surveyed(run_dir, n).is_complete


def attempt(run_dir: Path, disk: Disk) -> int:
    """Play on a disk that fails at some moment; how many conversations were acknowledged."""
    acknowledged = 0
    try:
        with player.open_toy(run_dir, CONVERSATIONS, disk=disk) as run:
            try:
                player.play(run)
                run.contents()
                run.write_summary({})
            finally:
                acknowledged = run.written
    except StoreError:
        pass
    return acknowledged


def count_calls(directory: Path, system: FaultySystem, disk: Disk) -> int:
    attempt(directory, disk)
    return len(system.calls)


@pytest.mark.ci
def test_disk_failing_at_any_call_loses_nothing_acknowledged(tmp_path: Path, system: FaultySystem, disk: Disk) -> None:
    system.fault = errno.ENOSPC
    calls = count_calls(tmp_path / "reference", system, disk)
    for fail_at in range(1, calls + 1):
        system.calls.clear()
        system.fail_at = fail_at
        run_dir = tmp_path / str(fail_at)
        acknowledged = attempt(run_dir, disk)
        if (run_dir / "task_manifest.json").exists():
            assert read_run(run_dir).counts.done >= acknowledged
        check_whole(run_dir, CONVERSATIONS)


def test_failed_write_stops_everything_and_tells(run_dir: Path, system: FaultySystem, disk: Disk) -> None:
    told: list[StoreError] = []
    run = player.open_toy(run_dir, CONVERSATIONS, disk=disk)
    run.on_failure(told.append)
    system.fail_at = 1
    run.event("EVENT_X", {})
    with pytest.raises(StoreError, match="ENOSPC"):
        run.contents()
    before = len(system.calls)
    with pytest.raises(StoreError, match="ENOSPC"):
        player.play(run)
    run.on_failure(told.append)
    with pytest.raises(StoreError, match="ENOSPC"):
        run.close()

    assert told == [run.failure, run.failure]
    assert len(system.calls) == before


def test_unwritable_content_is_a_store_error_too(run_dir: Path) -> None:
    with pytest.raises(StoreError, match="not JSON compliant"), player.open_toy(run_dir, 1) as run:
        run.checkpoint({"busy_slot_s": float("nan")})


def test_batch_reaches_the_disk_in_the_order_of_its_promises(
    run_dir: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", LIMIT_S)
    with player.open_toy(run_dir, 1, disk=disk) as run:
        system.calls.clear()
        player.play(run)
    names = [(call, name) for call, name in system.calls if not name.startswith(".tmp-")]

    assert names[:8] == [
        ("write", "000001.jsonl"),
        ("fsync", "000001.jsonl"),
        ("link", "toy_00000.json"),
        ("fsync_directory", "transcripts"),
        ("write", "000001.jsonl"),
        ("fsync", "000001.jsonl"),
        ("write", "toy_index.jsonl"),
        ("write", "events.jsonl"),
    ]


def test_what_gathers_is_committed_with_one_sync(run_dir: Path, system: FaultySystem, disk: Disk) -> None:
    go_on = threading.Event()
    with player.open_toy(run_dir, 50, disk=disk) as run:
        system.calls.clear()
        system.gate = lambda call, name: go_on.wait(LIMIT_S)
        player.play(run)
        go_on.set()
        run.contents()

    # One batch at the gate and one behind it, each with a sync for its replies and one for its conversations.
    assert system.calls.count(("fsync", "000001.jsonl")) - 1 <= 4


@pytest.mark.ci
def test_full_disk_stops_the_run_and_space_lets_it_end(run_dir: Path) -> None:
    """The file size limit of a child process stands in for a full disk: a write is cut short, then fails."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    command = [sys.executable, player.__file__, str(run_dir), "20"]
    found = subprocess.run(
        command, preexec_fn=limit, capture_output=True, text=True, check=False, env=child_environment()
    )

    assert found.returncode != 0
    assert "StoreError: cannot write" in found.stderr
    assert "EFBIG" in found.stderr
    check_whole(run_dir, 20)


def test_directory_deleted_under_way_is_a_store_error(run_dir: Path) -> None:
    run = player.open_toy(run_dir, 2)
    shutil.rmtree(run_dir)

    with pytest.raises(StoreError, match="ENOENT"):
        play_and_close(run)
    assert run.written == 0


def play_and_close(run: Run) -> None:
    with run:
        player.play(run)


def child_environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root}


def rows_of(run_dir: Path) -> list[JsonObject]:
    return list(read_run(run_dir).rows())


def test_two_runners_let_in_by_a_broken_lock_lose_and_duplicate_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lock that is always granted, as on some network filesystems.
    monkeypatch.setattr("filelock.FileLock.acquire", lambda self: None)
    with player.open_toy(run_dir, 8) as first, player.open_toy(run_dir, 8) as second:
        player.play(first)
        player.play(second)
        first.contents()
        second.contents()

    assert len(rows_of(run_dir)) == 8
    monkeypatch.undo()
    check_whole(run_dir, 8)
