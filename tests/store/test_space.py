from __future__ import annotations

import errno
import os
from pathlib import Path
from types import ModuleType

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, System, read_run, verify_run
from mac_runner.store.disk import Free
from mac_runner.store.space import Need, size_text


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


def test_run_that_will_not_fit_is_refused_with_what_is_missing(player: ModuleType, run_dir: Path) -> None:
    small = Disk(SmallDisk(size_bytes=100_000))
    with pytest.raises(
        StoreError, match=r"the 100 conversations left need at least 494\.6 kB \(494600 bytes\) .* 100\.0 kB"
    ):
        player.open_toy(run_dir, 100, disk=small)

    with player.open_toy(run_dir, 20, disk=small) as run:
        player.play(run)
    assert read_run(run_dir).counts.done == 20


def test_what_is_needed_is_learned_from_the_transcripts_so_far(player: ModuleType, run_dir: Path) -> None:
    with player.open_toy(run_dir, 4) as run:
        player.play(run)
    size_bytes = (run_dir / "transcripts/toy_00000.json").stat().st_size
    needed = Need(96, size_bytes).size_bytes(4096)

    with pytest.raises(StoreError, match="the 96 conversations left need about") as refusal:
        player.open_toy(run_dir, 100, disk=Disk(SmallDisk(size_bytes=needed * 9 // 10)))
    assert f"{size_text(needed // 10)} are missing" in str(refusal.value)
    with player.open_toy(run_dir, 100, disk=Disk(SmallDisk(size_bytes=needed * 11 // 10))):
        pass


def test_estimate_is_no_more_than_a_run_takes(player: ModuleType, run_dir: Path) -> None:
    with player.open_toy(run_dir, 30) as run:
        player.play(run)
    size_bytes = (run_dir / "transcripts/toy_00000.json").stat().st_size
    taken = sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file())

    needed = Need(30, size_bytes).size_bytes()
    assert needed < taken < 2 * needed


def test_run_for_which_there_are_too_few_inodes_is_refused(player: ModuleType, run_dir: Path) -> None:
    with pytest.raises(
        StoreError, match=r"100 conversations left need as many files \(inodes\) .* 60 are free: 40 are missing"
    ):
        player.open_toy(run_dir, 100, disk=Disk(SmallDisk(files=60)))


def test_finished_run_needs_no_room(player: ModuleType, run_dir: Path) -> None:
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
    with player.open_toy(run_dir, 2, disk=Disk(SmallDisk(size_bytes=0, files=0))) as run:
        assert run.counts.done == 2


def test_disk_that_fills_up_is_told_with_what_the_rest_needs(player: ModuleType, run_dir: Path) -> None:
    system = SmallDisk()
    run = player.open_toy(run_dir, 10, disk=Disk(system))
    system.writes_left = 5
    player.play(run)
    with pytest.raises(StoreError) as failure:
        run.close()

    assert "free some space or raise the quota" in str(failure.value)
    assert "the 10 conversations left need at least" in str(failure.value)
    with player.open_toy(run_dir, 10) as run:
        player.play(run)
    assert verify_run(run_dir, rebuild=player.rebuild).acknowledged == 10


def test_disk_without_room_to_begin_is_told_with_what_is_needed(player: ModuleType, run_dir: Path) -> None:
    with player.open_toy(run_dir, 10) as run:
        player.play(run, turns=9)
    system = SmallDisk()
    system.writes_left = 0

    with pytest.raises(StoreError, match=r"ENOSPC.*the 8 conversations left need about"):
        player.open_toy(run_dir, 10, disk=Disk(system))


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0.0 kB"), (999_000, "999.0 kB"), (1_250_000, "1.2 MB"), (5_000_000_000_000, "5.0 TB")]
)
def test_sizes_are_told_as_people_say_them(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
