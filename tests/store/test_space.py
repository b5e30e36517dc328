from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.errors import StoreError
from mac_runner.store import Disk, Need, System, read_run, verify_run, writer
from mac_runner.store.testing import Free, size_text
from tests.patience import LIMIT_S
from tests.store import player


class SmallDisk(System):
    """A filesystem that says how much it has left, and is full after so many writes."""

    def __init__(self, *, size_bytes: int = 1 << 40, files: int | None = None) -> None:
        self.left = Free(size_bytes=size_bytes, files=files, block_bytes=4096)
        self.writes_left: int | None = None

    def free(self, path: Path) -> Free:
        return self.left

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data)


def told(run_dir: Path, n: int, disk: Disk) -> str:
    """What a run that may not begin says."""
    with pytest.raises(StoreError) as refusal:
        player.open_toy(run_dir, n, disk=disk)
    return str(refusal.value).replace(str(run_dir), "DIR")


def test_run_that_will_not_fit_is_refused_with_what_is_missing(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    small = Disk(SmallDisk(size_bytes=100_000))
    assert told(run_dir, 100, small) == snapshot

    with player.open_toy(run_dir, 20, disk=small) as run:
        player.play(run)
    assert read_run(run_dir).counts.done == 20


def test_what_is_needed_is_learned_from_the_transcripts_so_far(run_dir: Path) -> None:
    with player.open_toy(run_dir, 4) as run:
        player.play(run)
    size_bytes = (run_dir / "transcripts/toy_00000.json").stat().st_size
    needed = Need(96, size_bytes).size_bytes(4096)

    with pytest.raises(StoreError, match="96 conversations left") as refusal:
        player.open_toy(run_dir, 100, disk=Disk(SmallDisk(size_bytes=needed * 9 // 10)))
    assert f"{size_text(needed // 10)} are missing" in str(refusal.value)
    with player.open_toy(run_dir, 100, disk=Disk(SmallDisk(size_bytes=needed * 11 // 10))):
        pass


def test_estimate_is_no_more_than_a_run_takes(run_dir: Path) -> None:
    with player.open_toy(run_dir, 30) as run:
        player.play(run)
    size_bytes = (run_dir / "transcripts/toy_00000.json").stat().st_size
    taken = sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file())

    needed = Need(30, size_bytes).size_bytes()
    assert needed < taken < 2 * needed


def test_run_for_which_there_are_too_few_inodes_is_refused(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    assert told(run_dir, 100, Disk(SmallDisk(files=60))) == snapshot


def test_finished_run_needs_no_room(run_dir: Path) -> None:
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
    with player.open_toy(run_dir, 2, disk=Disk(SmallDisk(size_bytes=0, files=0))) as run:
        assert run.counts.done == 2


def test_disk_that_fills_up_is_told_with_what_the_rest_needs(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    # All at once: which file meets the end of the disk depends on what is written before.
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", LIMIT_S)
    system = SmallDisk()
    run = player.open_toy(run_dir, 10, disk=Disk(system))
    system.writes_left = 5
    player.play(run)
    with pytest.raises(StoreError) as failure:
        run.close()

    assert str(failure.value).replace(str(run_dir), "DIR") == snapshot
    with player.open_toy(run_dir, 10) as run:
        player.play(run)
    assert verify_run(run_dir, rebuild=player.rebuild).acknowledged == 10


def test_disk_without_room_to_begin_is_told_with_what_is_needed(run_dir: Path) -> None:
    with player.open_toy(run_dir, 10) as run:
        player.play(run, turns=9)
    system = SmallDisk()
    system.writes_left = 0

    with pytest.raises(StoreError, match=r"ENOSPC.* 8 conversations left"):
        player.open_toy(run_dir, 10, disk=Disk(system))


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0.0 kB"), (999_000, "999.0 kB"), (1_250_000, "1.2 MB"), (5_000_000_000_000, "5.0 TB")]
)
def test_sizes_are_told_as_people_say_them(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
