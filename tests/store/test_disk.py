from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mac_runner.errors import StoreError, UnusablePathError
from mac_runner.store import Disk, System
from mac_runner.store.disk import OpenFile
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
