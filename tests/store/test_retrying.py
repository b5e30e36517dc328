"""Conversations taken up again: those that failed, with their attempts kept, and forks, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mac_runner.clock import SystemClock
from mac_runner.errors import IdentityError, RunDirectoryError, StoreError
from mac_runner.store import Disk, RunRecorder, read_run, replies_before_failure, writer
from mac_runner.store.testing import Branch, ForkRecord, objects, read_fork, write_fork
from mac_runner.types import Fork, JsonObject, RecordedReply, Task
from tests.faults.crashfs import CrashDisk
from tests.faults.test_crashes import Moments
from tests.kit import copied
from tests.patience import LIMIT_S
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock, edit, failing_calls, files, flip

CONVERSATIONS = 4
FAILED = ("toy_00001", "toy_00003")


def fail_some(run_dir: Path, *failed: str) -> Path:
    """Play a toy run in which some conversations fail after two replies."""
    return player.played(run_dir, CONVERSATIONS, failing=failed or FAILED)


def open_retry(run_dir: Path, *, wanted: tuple[str, ...] = FAILED, **more: Any) -> RunRecorder:
    tasks = player.plan(CONVERSATIONS).among(FAILED)
    return player.open_toy(run_dir, tasks, clock=StillClock(), is_retried=wanted.__contains__, **more)


def retried(run_dir: Path, **more: Any) -> Path:
    with open_retry(run_dir, **more) as run:
        player.play(run)
    return run_dir


def row_of(run_dir: Path, task_id: str) -> JsonObject:
    (row,) = (row for row in read_run(run_dir).rows() if row["task_id"] == task_id)
    return row


def test_retry_goes_on_from_the_replies_before_the_failure_and_ends_like_a_run_without_one(tmp_path: Path) -> None:
    run_dir = fail_some(tmp_path / "failed")

    with open_retry(run_dir) as run:
        assert run.counts.failed == 0
        assert player.play(run) == len(FAILED) * (player.TURNS - 2)

    assert read_run(run_dir).counts == (CONVERSATIONS, CONVERSATIONS, 0)
    assert player.verified(run_dir).findings == ()
    never = player.played(tmp_path / "never", CONVERSATIONS)
    assert files(run_dir / "transcripts") == files(never / "transcripts")


def test_failed_attempts_are_kept_and_told_in_the_index(run_dir: Path) -> None:
    fail_some(run_dir)
    first = (run_dir / "transcripts/toy_00001.json").read_bytes()
    with open_retry(run_dir) as run:
        player.play(run, failing={"toy_00001"}, until=3)
    second = (run_dir / "transcripts/toy_00001.json").read_bytes()
    retried(run_dir)

    assert (run_dir / "attempts/toy_00001.1.json").read_bytes() == first
    assert (run_dir / "attempts/toy_00001.2.json").read_bytes() == second
    assert sorted(path.name for path in (run_dir / "attempts").iterdir())[2:] == ["toy_00003.1.json"]
    told = objects(row_of(run_dir, "toy_00001"), "failed_attempts")
    assert [(attempt["attempt"], attempt["failure"], attempt["transcript"]) for attempt in told] == [
        (number, player.STORY, f"attempts/toy_00001.{number}.json") for number in (1, 2)
    ]
    assert "failed_attempts" not in row_of(run_dir, "toy_00000")
    assert player.verified(run_dir).findings == ()


def test_retry_takes_up_what_is_asked_and_nothing_else(run_dir: Path) -> None:
    fail_some(run_dir)

    retried(run_dir, wanted=("toy_00003",))

    assert read_run(run_dir).failed() == {"toy_00001"}
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
    (told,) = (event for event in events if event["event"] == "EVENT_CONVERSATION_RETRIED")
    assert (told["task"], told["attempt"], told["failure"]) == ("toy_00003", 1, player.STORY)


def test_ordinary_resume_ends_a_retry_that_was_interrupted(run_dir: Path) -> None:
    fail_some(run_dir)
    with open_retry(run_dir) as run:
        player.play(run, turns=1)
    assert read_run(run_dir).under_retry() == set(FAILED)

    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert player.play(run) == len(FAILED) * (player.TURNS - 2) - 1

    assert read_run(run_dir).under_retry() == set()
    assert player.verified(run_dir).findings == ()


def test_failure_without_a_reply_before_it_begins_anew(run_dir: Path) -> None:
    """The reply that a conversation failed on does not come back with the journal."""
    with player.open_toy(run_dir, 1) as run:
        for task, _ in run.unfinished():
            run.reply(task, player.answer(task, []))
            run.publish(task, player.transcript(task, [], player.STORY))

    with player.open_toy(run_dir, 1, is_retried=lambda _task_id: True) as run:
        assert [(task.task_id, replies) for task, replies in run.unfinished()] == [("toy_00000", ())]


def test_reply_that_a_conversation_failed_on_is_asked_for_again() -> None:
    (task,) = player.plan(1)()
    replies = player.answers(task, 2)
    transcript: Any = player.transcript(task, replies, "its second turn made no sense")
    transcript["turns"][1]["receipt"]["kind"] = "failure"

    assert replies_before_failure(transcript) == [structs.replace(replies[0], model=None)]


@pytest.mark.ci
def test_retry_killed_at_any_call_keeps_attempts_and_replies(
    tmp_path: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All at once: with batches of another size it would be other calls each time.
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", LIMIT_S)
    reference, failed = fail_some(tmp_path / "reference"), fail_some(tmp_path / "failed")
    first = (failed / "transcripts/toy_00003.json").read_bytes()
    for fail_at in failing_calls(system, lambda: retried(reference, disk=disk)):
        run_dir = copied(failed, tmp_path / str(fail_at))
        with pytest.raises(StoreError), open_retry(run_dir, disk=disk) as run:
            player.play(run)
        contents = read_run(run_dir)
        wanted = contents.under_retry() or contents.failed()
        with open_retry(run_dir, wanted=tuple(wanted)) as run:
            player.play(run)
            run.write_summary({})
        assert player.verified(run_dir).findings == ()
        assert read_run(run_dir).counts == (CONVERSATIONS, CONVERSATIONS, 0)
        assert (run_dir / "attempts/toy_00003.1.json").read_bytes() == first
        assert not (run_dir / "attempts/toy_00003.2.json").exists()
        assert player.surveyed(run_dir, CONVERSATIONS).is_complete


def test_retry_reaches_the_disk_in_the_order_of_its_promises(run_dir: Path, system: FaultySystem, disk: Disk) -> None:
    open_retry(fail_some(run_dir, "toy_00001"), disk=disk).close()
    names = [(call, name) for call, name in system.calls if not name.startswith(".tmp-")]
    kept = names.index(("link", "toy_00001.1.json"))

    assert names[kept : kept + 5] == [
        ("link", "toy_00001.1.json"),
        ("fsync_directory", "attempts"),
        ("write", "000002.jsonl"),
        ("fsync", "000002.jsonl"),
        ("unlink", "toy_00001.json"),
    ]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (Path.unlink, "lost"),
        (lambda path: edit(path, flip), "damaged"),
        (lambda path: path.with_name("toy_00001.7.json").write_bytes(b"{}"), "unexpected"),
    ],
)
def test_verify_watches_over_attempts(run_dir: Path, change: Callable[[Path], object], count: str) -> None:
    retried(fail_some(run_dir))
    change(run_dir / "attempts/toy_00001.1.json")

    report = player.verified(run_dir)

    assert len(report.findings) == getattr(report, count) == 1


@pytest.mark.parametrize("played", [None, 0], ids=["ended", "open"])
def test_retry_of_what_another_process_retries_already_keeps_every_attempt(run_dir: Path, played: int | None) -> None:
    """A broken lock let it in; what it retried has ended again, or is open."""
    fail_some(run_dir)
    first = {task_id: (run_dir / f"transcripts/{task_id}.json").read_bytes() for task_id in FAILED}

    with open_retry(run_dir) as late:
        with open_retry(run_dir, is_guarded=True) as early:
            player.play(player.begun(early), turns=played, failing=FAILED, until=3)
        acknowledged = {task_id: row_of(run_dir, task_id) for task_id in FAILED if played is None}
        player.play(late)

    for task_id in FAILED:
        assert (run_dir / f"attempts/{task_id}.1.json").read_bytes() == first[task_id]
        assert row_of(run_dir, task_id)["status"] == ("finished" if played == 0 else "failed")
    assert {task_id: row_of(run_dir, task_id) for task_id in acknowledged} == acknowledged
    assert not (run_dir / "damaged").exists()
    assert player.verified(run_dir).findings == ()


def test_damaged_transcript_is_not_kept_as_an_attempt(run_dir: Path) -> None:
    fail_some(run_dir)
    (run_dir / "transcripts/toy_00001.json").write_bytes(b"{}")

    with pytest.raises(RunDirectoryError, match=r"toy_00001\.json is not"):
        open_retry(run_dir)


def test_attempts_come_along_in_a_merge(tmp_path: Path) -> None:
    retried(fail_some(tmp_path / "run"), wanted=("toy_00003",))
    before = (tmp_path / "run/toy_index.jsonl").read_bytes()

    player.merged(tmp_path / "whole", tmp_path / "run", tasks=CONVERSATIONS)

    assert (tmp_path / "whole/toy_index.jsonl").read_bytes() == before
    assert (tmp_path / "whole/attempts/toy_00003.1.json").exists()
    assert player.verified(tmp_path / "whole").findings == ()
    assert read_run(tmp_path / "whole").failed() == {"toy_00001"}


DRAWS = 3


def branches() -> list[Branch]:
    """Three draws that keep two of the four replies of the toy's first task."""
    (parent,) = player.plan(1)()
    forks = [Fork(of=parent.task_id, turn=player.turn(2).key, arm="fork", draw=draw) for draw in range(DRAWS)]
    return [
        Branch(
            replace(parent, task_id=f"{parent.task_id}-f2-d{fork.draw:03d}", index=fork.draw, fork=fork),
            player.answers(parent, 2),
        )
        for fork in forks
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
    moments = Moments(disk, torn=8)
    assert write(directory, Disk(disk))
    disk.before = lambda _call, _path: None
    expected = [(task.task_id, replies) for task, replies in opened(directory, Disk(disk))]

    assert [len(replies) for _, replies in expected] == [2] * DRAWS
    assert len(moments.cases) > 20
    for crashed, _ in moments.cases.values():
        write(directory, Disk(crashed))
        assert [(task.task_id, replies) for task, replies in opened(directory, Disk(crashed))] == expected


def test_fork_is_written_once_and_never_over_another_run(tmp_path: Path) -> None:
    player.played(tmp_path / "run", 1)

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
