"""A fork is written whole or not at all: whenever the power goes, the same command makes the same fork."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.store import Disk, read_run
from mac_runner.store.testing import Branch, ForkRecord, read_fork, write_fork
from mac_runner.types import Fork, RecordedReply, Task
from tests.faults.crashfs import CrashDisk, Fate
from tests.store import player

DRAWS = 3


def branches() -> list[Branch]:
    """Three draws that keep two of the four replies of the toy's first task."""
    (parent,) = player.plan(1)()
    replies: list[RecordedReply] = []
    while len(replies) < 2:
        replies.append(player.answer(parent, replies))
    key = player.turn(2).key
    return [
        Branch(
            replace(
                parent,
                task_id=f"{parent.task_id}-f2-d{draw:03d}",
                index=draw,
                fork=Fork(of=parent.task_id, turn=key, arm="fork", draw=draw),
            ),
            replies,
        )
        for draw in range(DRAWS)
    ]


def record(turn: str = "2") -> ForkRecord:
    return ForkRecord(
        asked={"turn": turn}, parents=({"task": "toy_00000"},), tasks=tuple(task for task, _ in branches())
    )


def write(directory: Path, disk: Disk | None = None, found: ForkRecord | None = None) -> bool:
    return write_fork(
        directory,
        experiment_name=player.NAME,
        resolved=player.resolved(),
        record=found or record(),
        branches=branches(),
        clock=SystemClock(),
        disk=disk,
    )


def opened(directory: Path, disk: Disk | None = None) -> Iterator[tuple[Task, tuple[RecordedReply, ...]]]:
    fork = read_fork(disk or Disk(), directory)
    assert fork is not None
    with player.open_toy(directory, fork.plan(), disk=disk) as run:
        yield from run.unfinished()


@pytest.mark.ci
def test_crash_at_every_operation_leaves_no_fork_or_a_whole_one(tmp_path: Path) -> None:
    disk, directory = CrashDisk(tmp_path), tmp_path / "fork"
    chance = Random(3)
    cases: dict[frozenset[tuple[str, bytes]], CrashDisk] = {}

    def note(_call: str, _path: Path) -> None:
        fates: list[Fate] = ["keep", "drop", *[chance] * 8]
        for crashed in map(disk.crash, fates):
            cases[frozenset(crashed.files().items())] = crashed

    disk.before = note
    assert write(directory, Disk(disk))
    disk.before = lambda _call, _path: None
    expected = [(task.task_id, replies) for task, replies in opened(directory, Disk(disk))]

    assert [len(replies) for _, replies in expected] == [2] * DRAWS
    assert len(cases) > 20
    for crashed in cases.values():
        write(directory, Disk(crashed))
        assert [(task.task_id, replies) for task, replies in opened(directory, Disk(crashed))] == expected


def test_fork_is_written_once_and_never_over_another_run(tmp_path: Path) -> None:
    with player.open_toy(tmp_path / "run", 1) as run:
        player.play(run)

    assert write(tmp_path / "fork")
    assert not write(tmp_path / "fork")
    with pytest.raises(IdentityError, match="holds another fork"):
        write(tmp_path / "fork", found=record("3"))
    with pytest.raises(RunDirectoryError, match="not a fork"):
        write(tmp_path / "run")
    (tmp_path / "fork" / "experiment.yaml").unlink()
    (tmp_path / "fork" / "transcripts").mkdir()
    with pytest.raises(RunDirectoryError, match="not a fork"):
        write(tmp_path / "fork")


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "fork")

    found = read_run(tmp_path / "fork").fork

    assert found is not None
    assert found.is_same(record())
    (tmp_path / "fork" / "fork.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="put back"):
        read_fork(Disk(), tmp_path / "fork")
