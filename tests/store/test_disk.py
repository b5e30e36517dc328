"""The disk below a run: in which order it is reached, how it fails, fills up and hangs, and what is taken back."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.errors import StoreError, UnusablePathError
from mac_runner.store import Disk, Need, System, read_run, writer
from mac_runner.store.testing import Free, OpenFile, Writer, size_text
from tests.patience import LIMIT_S
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock, join_writer


class NoLinks(System):
    """A filesystem without hard links."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_replaced_file_is_synced_before_it_takes_its_name_and_its_name_after(
    tmp_path: Path, disk: Disk, system: FaultySystem
) -> None:
    disk.write_atomic(tmp_path / "a", [b"1", b"2"])

    assert [call for call, _ in system.calls] == ["create", "write", "fsync", "replace", "fsync_directory"]
    assert (tmp_path / "a").read_bytes() == b"12"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_first_publication_wins_also_where_there_are_no_hard_links(tmp_path: Path, system: FaultySystem) -> None:
    for name, disk in {"links": Disk(system), "no links": Disk(NoLinks())}.items():
        assert disk.publish_once(tmp_path / name, b"first")
        assert not disk.publish_once(tmp_path / name, b"second")
        assert (tmp_path / name).read_bytes() == b"first"

    assert {path.name for path in tmp_path.iterdir()} == {"links", "no links"}
    assert [call for call, _ in system.calls[:5]] == ["create", "write", "fsync", "link", "unlink"]


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


def tree(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        (None, {}),
        ({}, {}),
        ({}, {"config": player.resolved(description="another")}),
        ({"failing": ["toy_00000"]}, {"is_retried": lambda _task_id: True}),
        ({"turns": 0}, {"config": player.resolved(seed=2)}),
    ],
    ids=["new", "run", "changed settings", "retry", "another experiment where nothing was played"],
)
def test_start_that_fails_at_any_call_leaves_the_directory_as_it_was(
    run_dir: Path, before: dict[str, Any] | None, asked: dict[str, Any]
) -> None:
    """Each call that changes the disk fails once, in turn; and the start is withdrawn where none does."""
    if before is not None:
        player.played(run_dir, 2, **before)
    found = tree(run_dir.parent)
    refused = 0
    for nth in count(1):
        system = FaultySystem()
        system.fail_at, system.is_once = nth, True
        try:
            run = player.open_toy(run_dir, 3, disk=Disk(system), **asked)
        except StoreError:
            refused += 1
            assert tree(run_dir.parent) == found, nth
            continue
        has_failed = len(system.calls) >= nth
        system.fail_at = None
        run.withdraw()
        assert tree(run_dir.parent) == found, nth
        if not has_failed:
            break
    assert refused > 5


def test_run_that_was_given_nothing_is_withdrawn_by_an_error_and_stands_without_one(run_dir: Path) -> None:
    before = tree(run_dir.parent)
    with pytest.raises(ZeroDivisionError), player.open_toy(run_dir, 2):
        raise ZeroDivisionError
    assert tree(run_dir.parent) == before

    with player.open_toy(run_dir, 2):
        pass
    assert (run_dir / "journal" / "000001.jsonl").exists()


def test_file_that_goes_while_a_directory_is_listed_has_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stays", "goes"):
        (tmp_path / name).write_text(name)
    scan = os.scandir

    @contextmanager
    def scan_and_lose(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scan(path) as entries:
            found = [*entries]
        (tmp_path / "goes").unlink()
        yield found

    monkeypatch.setattr(os, "scandir", scan_and_lose)

    assert Disk().sizes(tmp_path) == {"stays": 5}


class Slow:
    """A committer that is at one thing until somebody has looked six times whether it gets on.

    With `is_moving` it always has.
    """

    def __init__(self, slow_at: str, *, is_moving: bool = True) -> None:
        self.slow_at, self.is_moving = slow_at, is_moving
        self.looks = 0
        self.is_over = threading.Event()

    @property
    def pulse(self) -> int:
        self.looks += 1
        if self.looks == 6:
            self.is_over.set()
        return self.looks if self.is_moving else 0

    def commit(self, items: Sequence[int]) -> None:
        self._do("commit")

    def idle(self) -> None:
        pass

    def finish(self) -> None:
        self._do("finish")

    def close(self) -> None:
        self._do("close")

    def _do(self, what: str) -> None:
        if what == self.slow_at:
            self.is_over.wait(LIMIT_S)


@pytest.mark.parametrize("slow_at", ["commit", "finish", "close"])
def test_work_that_takes_long_is_waited_for_while_it_gets_on_and_given_up_where_nothing_gets_done(
    slow_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WRITER_STALL_S_MAX", 0.001)
    moving, stuck = Slow(slow_at), Slow(slow_at, is_moving=False)
    patient, impatient = Writer[int](moving), Writer[int](stuck)
    patient.submit(1)
    patient.close()
    impatient.submit(1)

    assert moving.is_over.is_set()
    assert patient.failure is None
    with pytest.raises(StoreError, match="did nothing"):
        impatient.close()
    stuck.is_over.set()
    join_writer()


def test_disk_is_not_given_up_for_one_long_wait_in_which_the_process_may_have_been_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "WRITER_STALL_S_MAX", LIMIT_S)
    monkeypatch.setattr(writer, "_LOOK_S", 0.001)
    patient = Writer[int](Slow("commit", is_moving=False))
    patient.submit(1)

    patient.close()

    assert patient.failure is None


def test_batch_reaches_the_disk_in_the_order_of_its_promises(
    run_dir: Path, clock: StillClock, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with player.begun(player.open_toy(run_dir, 1, clock=clock, disk=disk)) as run:
        monkeypatch.setattr(writer, "COMMIT_LINGER_S", LIMIT_S)
        system.calls.clear()
        player.play(run)
    log, names = "000001.jsonl", [(call, name) for call, name in system.calls if not name.startswith(".tmp-")]

    assert names[:8] == [
        *(("write", log), ("fsync", log), ("link", "toy_00000.json"), ("fsync_directory", "transcripts")),
        *(("write", log), ("fsync", log), ("write", "toy_index.jsonl"), ("write", "events.jsonl")),
    ]


def test_failed_write_stops_everything_and_tells(run_dir: Path, system: FaultySystem, disk: Disk) -> None:
    told: list[StoreError] = []
    run = player.open_toy(run_dir, 4, disk=disk)
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
    join_writer()

    assert told == [run.failure, run.failure]
    assert len(system.calls) == before


def test_directory_deleted_under_way_is_a_store_error(run_dir: Path) -> None:
    """As is what cannot be written down."""
    with pytest.raises(StoreError, match="not JSON compliant"), player.open_toy(run_dir, 1) as run:
        run.checkpoint({"busy_slot_s": float("nan")})
    run = player.open_toy(run_dir, 2)
    shutil.rmtree(run_dir)

    with pytest.raises(StoreError, match="ENOENT"), run:
        player.play(run)
    assert run.written == 0


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

    player.played(run_dir, 20, disk=small)
    assert read_run(run_dir).counts.done == 20


def test_what_is_needed_is_learned_from_the_transcripts_so_far_and_no_more_than_a_run_takes(run_dir: Path) -> None:
    player.played(run_dir, 4)
    size_bytes = (run_dir / "transcripts/toy_00000.json").stat().st_size
    needed = Need(96, size_bytes).size_bytes(4096)
    free = needed * 9 // 10

    with pytest.raises(StoreError, match=f"96 conversations left.*{size_text(needed - free)} are missing"):
        player.open_toy(run_dir, 100, disk=Disk(SmallDisk(size_bytes=free)))
    player.played(run_dir, 30, disk=Disk(SmallDisk(size_bytes=needed * 11 // 10)))
    taken = sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file())
    assert Need(30, size_bytes).size_bytes() < taken < 2 * Need(30, size_bytes).size_bytes()


def test_run_for_which_there_are_too_few_inodes_is_refused(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    assert told(run_dir, 100, Disk(SmallDisk(files=60))) == snapshot


def test_finished_run_needs_no_room(run_dir: Path) -> None:
    player.played(player.played(run_dir, 2), 2, disk=Disk(SmallDisk(size_bytes=0, files=0)))


def test_disk_that_fills_up_is_told_with_what_the_rest_needs(
    run_dir: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    system = SmallDisk()
    run = player.begun(player.open_toy(run_dir, 10, clock=clock, disk=Disk(system)))
    # All at once: which file meets the end of the disk depends on what is written before.
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", LIMIT_S)
    system.writes_left = 5
    player.play(run)
    with pytest.raises(StoreError) as failure:
        run.close()

    assert str(failure.value).replace(str(run_dir), "DIR") == snapshot
    player.played(run_dir, 10)
    assert player.verified(run_dir).acknowledged == 10


def test_disk_without_room_to_begin_is_told_with_what_is_needed(run_dir: Path) -> None:
    player.played(run_dir, 10, turns=9)
    system = SmallDisk()
    system.writes_left = 0

    with pytest.raises(StoreError, match=r"ENOSPC.* 8 conversations left"):
        player.open_toy(run_dir, 10, disk=Disk(system))


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0.0 kB"), (999_000, "999.0 kB"), (1_250_000, "1.2 MB"), (5_000_000_000_000, "5.0 TB")]
)
def test_sizes_are_told_as_people_say_them(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
