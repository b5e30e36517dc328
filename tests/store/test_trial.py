from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, System
from mac_runner.store.disk import TrialDisk
from tests.store import player


class NoLinks(System):
    """A filesystem without hard links."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def tree(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def change_everything(disk: Disk, here: Path) -> None:
    disk.write_atomic(here / "old", [b"replaced"])
    disk.write_atomic(here / "old", [b"replaced again"])
    disk.write_atomic(here / "new", [b"new"])
    disk.remove(here / "gone")
    disk.remove(here / "new")
    disk.make_directory(here / "a" / "b")
    file = disk.create(here / "a" / "b" / "file")
    assert file is not None
    disk.append(file, b"data")
    disk.close(file)
    assert disk.create(here / "taken") is None
    disk.close(disk.open_append(here / "appended"))
    disk.close(disk.open_append(here / "taken"))
    assert disk.publish_once(here / "published", b"1")
    assert not disk.publish_once(here / "taken", b"1")
    disk.rename(here / "moved", here / "a" / "moved")
    disk.sweep(here)


@pytest.mark.parametrize("system", [System, NoLinks])
def test_what_was_done_on_trial_is_taken_back_or_stands(tmp_path: Path, system: type[System]) -> None:
    for name in ("old", "gone", "taken", "moved"):
        (tmp_path / name).write_text(name)
    before = tree(tmp_path)

    trial = TrialDisk(Disk(system()))
    change_everything(trial, tmp_path)
    assert (tmp_path / "old").read_text() == "replaced again"
    trial.withdraw()
    assert tree(tmp_path) == before

    trial = TrialDisk(Disk(system()))
    change_everything(trial, tmp_path)
    trial.settle()
    after = tree(tmp_path)
    trial.withdraw()
    assert tree(tmp_path) == after
    assert sorted(after) == ["a", "a/b", "a/b/file", "a/moved", "appended", "old", "published", "taken"]


def test_what_cannot_be_taken_back_is_left_with_all_that_was_done_before(tmp_path: Path) -> None:
    trial = TrialDisk(Disk())
    trial.make_directory(tmp_path / "a")
    trial.write_atomic(tmp_path / "a" / "file", [b"1"])
    trial.make_directory(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "foreign").touch()

    trial.withdraw()

    assert sorted(tree(tmp_path)) == ["a", "a/b", "a/b/foreign", "a/file"]


@pytest.mark.parametrize("has_run", [False, True])
def test_start_that_fails_at_any_call_leaves_the_directory_as_it_was(run_dir: Path, has_run: bool) -> None:
    """Each call that changes the disk fails once, in turn."""

    class FailsAt(System):
        def __init__(self, nth: int) -> None:
            self.left = nth

        def fail(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def create(self, path: Path) -> int:
            self.fail()
            return super().create(path)

        def write(self, descriptor: int, data: memoryview) -> int:
            self.fail()
            return super().write(descriptor, data)

        def fsync(self, descriptor: int) -> None:
            self.fail()
            super().fsync(descriptor)

        def replace(self, source: Path, target: Path) -> None:
            self.fail()
            super().replace(source, target)

        def make_directory(self, path: Path) -> None:
            self.fail()
            super().make_directory(path)

        def fsync_directory(self, path: Path) -> None:
            self.fail()
            super().fsync_directory(path)

    if has_run:
        with player.open_toy(run_dir, 2) as run:
            player.play(run)
    before = tree(run_dir.parent)
    refused = 0
    for nth in range(1, 200):
        system = FailsAt(nth)
        try:
            run = player.open_toy(run_dir, 3, disk=Disk(system))
        except StoreError:
            refused += 1
            assert tree(run_dir.parent) == before, nth
            continue
        system.left = 0
        run.withdraw()
        assert tree(run_dir.parent) == before
        break
    assert refused > 10


def test_run_that_was_given_nothing_is_withdrawn_by_an_error_and_stands_without_one(run_dir: Path) -> None:
    before = tree(run_dir.parent)
    with pytest.raises(ZeroDivisionError), player.open_toy(run_dir, 2):
        raise ZeroDivisionError
    assert tree(run_dir.parent) == before

    with player.open_toy(run_dir, 2):
        pass
    assert (run_dir / "journal" / "000001.jsonl").exists()


def test_file_that_another_process_replaces_at_this_moment_is_kept(tmp_path: Path) -> None:
    """Linux answers ENOENT to a link whose source loses its name to another file meanwhile."""
    (tmp_path / "old").write_text("old")

    class Raced(System):
        left = 3

        def link(self, source: Path, target: Path) -> None:
            if self.left:
                self.left -= 1
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            super().link(source, target)

    trial = TrialDisk(Disk(Raced()))
    trial.write_atomic(tmp_path / "old", [b"new"])
    assert (tmp_path / "old").read_text() == "new"
    trial.withdraw()
    assert tree(tmp_path) == {"old": b"old"}
