from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from mac_runner.errors import StoreError, UnusablePathError
from mac_runner.store import Disk, System
from mac_runner.store.testing import OpenFile, TrialDisk
from tests.store import player
from tests.store.conftest import FaultySystem


def test_replaced_file_is_synced_before_it_takes_its_name_and_its_name_after(
    tmp_path: Path, disk: Disk, system: FaultySystem
) -> None:
    disk.write_atomic(tmp_path / "a", [b"1", b"2"])

    assert [call for call, _ in system.calls] == ["create", "write", "write", "fsync", "replace", "fsync_directory"]
    assert (tmp_path / "a").read_bytes() == b"12"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_first_publication_wins(tmp_path: Path, disk: Disk, system: FaultySystem) -> None:
    assert disk.publish_once(tmp_path / "a", b"first")
    assert not disk.publish_once(tmp_path / "a", b"second")

    assert (tmp_path / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [call for call, _ in system.calls[:5]] == ["create", "write", "fsync", "link", "unlink"]


def test_filesystem_without_hard_links_still_publishes_once(tmp_path: Path) -> None:
    class NoLinks(System):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    disk = Disk(NoLinks())
    assert disk.publish_once(tmp_path / "a", b"first")
    assert not disk.publish_once(tmp_path / "a", b"second")

    assert (tmp_path / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_short_writes_are_carried_on(tmp_path: Path, disk: Disk, system: FaultySystem) -> None:
    system.write_bytes_max = 3
    file = disk.open_append(tmp_path / "a")
    disk.append(file, b"0123456789")
    disk.close(file)

    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_new_file_has_a_durable_name_and_a_taken_one_is_left(tmp_path: Path, disk: Disk, system: FaultySystem) -> None:
    file = disk.create(tmp_path / "a")
    assert file is not None
    disk.close(file)

    assert system.calls[-1] == ("fsync_directory", tmp_path.name)
    assert disk.create(tmp_path / "a") is None


@pytest.mark.parametrize("what", ["append", "publish", "read"])
def test_planted_link_is_not_followed(tmp_path: Path, disk: Disk, what: str) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_bytes(b"gold")
    (tmp_path / "link").symlink_to(treasure)
    link = tmp_path / "link"

    if what == "publish":
        assert not disk.publish_once(link, b"x")
    else:
        with pytest.raises(UnusablePathError, match="symbolic link"):
            disk.open_append(link) if what == "append" else disk.read(link)
    assert treasure.read_bytes() == b"gold"


@pytest.mark.parametrize(
    ("fault", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EACCES, "make the directory writable"), (errno.EIO, "works again")],
)
def test_error_names_operation_path_cause_and_what_to_do(tmp_path: Path, fault: int, advice: str) -> None:
    class Refusing(System):
        def create(self, path: Path) -> int:
            raise OSError(fault, "the reason")

    with pytest.raises(StoreError) as refusal:
        Disk(Refusing()).write_atomic(tmp_path / "a", [b""])

    text = str(refusal.value)
    assert text.startswith(f"cannot write {tmp_path / 'a'}: the reason ({errno.errorcode[fault]})")
    assert advice in text
    assert "the same command" in text


def test_full_device_is_a_store_error() -> None:
    disk = Disk()
    file = OpenFile(path=Path("/dev/full"), descriptor=os.open("/dev/full", os.O_WRONLY))
    try:
        with pytest.raises(StoreError, match="ENOSPC"):
            disk.append(file, b"x")
    finally:
        disk.close(file)


def test_what_is_not_there_reads_as_nothing(tmp_path: Path, disk: Disk) -> None:
    assert disk.names(tmp_path / "no") == []
    assert list(disk.chunks(tmp_path / "no")) == []
    assert not disk.exists(tmp_path / "no")
    with pytest.raises(StoreError, match="ENOENT"):
        disk.read(tmp_path / "no")


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
    if has_run:
        with player.open_toy(run_dir, 2) as run:
            player.play(run)
    before = tree(run_dir.parent)
    refused = 0
    for nth in count(1):
        system = FaultySystem()
        system.fail_at, system.is_once = nth, True
        try:
            run = player.open_toy(run_dir, 3, disk=Disk(system))
        except StoreError:
            refused += 1
            assert tree(run_dir.parent) == before, nth
            continue
        has_failed = len(system.calls) >= nth
        system.fail_at = None
        run.withdraw()
        assert tree(run_dir.parent) == before, nth
        if not has_failed:
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
