"""Failing disks and killed processes: what was acknowledged is there, and running again makes it whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, Run, writer
from tests.patience import LIMIT_S
from tests.store import player
from tests.store.conftest import FaultySystem

CONVERSATIONS = 4


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


def test_directory_deleted_under_way_is_a_store_error(run_dir: Path) -> None:
    run = player.open_toy(run_dir, 2)
    shutil.rmtree(run_dir)

    with pytest.raises(StoreError, match="ENOENT"):
        play_and_close(run)
    assert run.written == 0


def play_and_close(run: Run) -> None:
    with run:
        player.play(run)
