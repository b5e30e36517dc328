"""Failed conversations tried again: the failed attempt is kept, its replies stand, and a kill costs neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.store import Disk, Run, merge_runs, read_run, replies_before_failure, verify_run, writer
from mac_runner.types import JsonObject
from tests.kit import copied
from tests.patience import LIMIT_S
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock

CONVERSATIONS = 4
FAILED = ("toy_00001", "toy_00003")
STORY = "turn 2/Ann/0/0 got no answer"


def fail_some(run_dir: Path, *failed: str, replies: int = 2) -> Path:
    """Play a toy run in which some conversations fail after so many replies."""
    with player.open_toy(run_dir, CONVERSATIONS) as run:
        play_failing(run, failed or FAILED, replies)
    return run_dir


def play_failing(run: Run, failed: tuple[str, ...], until: int) -> None:
    for task, recorded in run.unfinished():
        replies = list(recorded)
        while len(replies) < (until if task.task_id in failed else player.TURNS):
            replies.append(player.answer(task, replies))
            run.reply(task, replies[-1])
        run.publish(task, player.transcript(task, replies, STORY if task.task_id in failed else None))


def open_retry(run_dir: Path, *, disk: Disk | None = None, wanted: tuple[str, ...] = FAILED) -> Run:
    tasks = player.plan(CONVERSATIONS).among(FAILED)
    return player.open_toy(run_dir, tasks, clock=StillClock(), disk=disk, is_retried=wanted.__contains__)


def row_of(run_dir: Path, task_id: str) -> JsonObject:
    (row,) = (row for row in read_run(run_dir).rows() if row["task_id"] == task_id)
    return row


def test_retry_goes_on_from_the_replies_before_the_failure(run_dir: Path) -> None:
    fail_some(run_dir)

    with open_retry(run_dir) as run:
        assert run.counts.failed == 0
        assert player.play(run) == len(FAILED) * (player.TURNS - 2)

    assert read_run(run_dir).counts == (CONVERSATIONS, CONVERSATIONS, 0)
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


def test_retried_run_ends_like_one_that_never_failed(tmp_path: Path) -> None:
    fail_some(tmp_path / "failed")
    with open_retry(tmp_path / "failed") as run:
        player.play(run)
    with player.open_toy(tmp_path / "never", CONVERSATIONS) as run:
        player.play(run)

    for path in (tmp_path / "never/transcripts").iterdir():
        assert (tmp_path / "failed/transcripts" / path.name).read_bytes() == path.read_bytes()


def test_failed_attempts_are_kept_and_told_in_the_index(run_dir: Path) -> None:
    fail_some(run_dir)
    first = (run_dir / "transcripts/toy_00001.json").read_bytes()
    with open_retry(run_dir) as run:
        play_failing(run, ("toy_00001",), 3)
    second = (run_dir / "transcripts/toy_00001.json").read_bytes()
    with open_retry(run_dir) as run:
        player.play(run)

    assert (run_dir / "attempts/toy_00001.1.json").read_bytes() == first
    assert (run_dir / "attempts/toy_00001.2.json").read_bytes() == second
    assert sorted(path.name for path in (run_dir / "attempts").iterdir())[2:] == ["toy_00003.1.json"]
    told = row_of(run_dir, "toy_00001")["failed_attempts"]
    assert isinstance(told, list)
    assert [(attempt["attempt"], attempt["failure"], attempt["transcript"]) for attempt in map(_object, told)] == [
        (1, STORY, "attempts/toy_00001.1.json"),
        (2, STORY, "attempts/toy_00001.2.json"),
    ]
    assert "failed_attempts" not in row_of(run_dir, "toy_00000")
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


def test_retry_takes_up_what_is_asked_and_nothing_else(run_dir: Path) -> None:
    fail_some(run_dir)

    with open_retry(run_dir, wanted=("toy_00003",)) as run:
        player.play(run)

    assert read_run(run_dir).failed() == {"toy_00001"}
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
    (told,) = (event for event in events if event["event"] == "EVENT_CONVERSATION_RETRIED")
    assert (told["task"], told["attempt"], told["failure"]) == ("toy_00003", 1, STORY)


def test_ordinary_resume_ends_a_retry_that_was_interrupted(run_dir: Path) -> None:
    fail_some(run_dir)
    with open_retry(run_dir) as run:
        player.play(run, turns=1)
    assert read_run(run_dir).under_retry() == set(FAILED)

    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert player.play(run) == len(FAILED) * (player.TURNS - 2) - 1

    assert read_run(run_dir).under_retry() == set()
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


def test_failure_without_a_reply_before_it_begins_anew(run_dir: Path) -> None:
    """The reply that a conversation failed on does not come back with the journal."""
    with player.open_toy(run_dir, 1) as run:
        for task, _ in run.unfinished():
            run.reply(task, player.answer(task, []))
            run.publish(task, player.transcript(task, [], STORY))

    with player.open_toy(run_dir, 1, is_retried=lambda _task_id: True) as run:
        assert [(task.task_id, replies) for task, replies in run.unfinished()] == [("toy_00000", ())]


def test_reply_that_a_conversation_failed_on_is_asked_for_again() -> None:
    (task,) = player.plan(1)()
    replies = [player.answer(task, [])]
    replies.append(player.answer(task, replies))
    transcript: Any = player.transcript(task, replies, "its second turn made no sense")
    transcript["turns"][1]["receipt"]["kind"] = "failure"

    assert replies_before_failure(transcript) == replies[:1]


@pytest.mark.ci
def test_retry_killed_at_any_call_keeps_attempts_and_replies(
    tmp_path: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All at once: with batches of another size it would be other calls each time.
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", LIMIT_S)
    with open_retry(fail_some(tmp_path / "reference"), disk=disk) as run:
        player.play(run)
    calls, failed = len(system.calls), fail_some(tmp_path / "failed")
    first = (failed / "transcripts/toy_00003.json").read_bytes()
    for fail_at in range(1, calls + 1):
        run_dir = copied(failed, tmp_path / str(fail_at))
        system.calls.clear()
        system.fail_at = fail_at
        with pytest.raises(StoreError), open_retry(run_dir, disk=disk) as run:
            player.play(run)
        contents = read_run(run_dir)
        wanted = contents.under_retry() or contents.failed()
        with open_retry(run_dir, wanted=tuple(wanted)) as run:
            player.play(run)
            run.write_summary({})
        assert verify_run(run_dir, rebuild=player.rebuild).findings == ()
        assert read_run(run_dir).counts == (CONVERSATIONS, CONVERSATIONS, 0)
        assert (run_dir / "attempts/toy_00003.1.json").read_bytes() == first
        assert not (run_dir / "attempts/toy_00003.2.json").exists()
        assert player.surveyed(run_dir, CONVERSATIONS).is_complete


def test_retry_reaches_the_disk_in_the_order_of_its_promises(run_dir: Path, system: FaultySystem, disk: Disk) -> None:
    fail_some(run_dir, "toy_00001")
    with open_retry(run_dir, disk=disk):
        pass
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
        (lambda path: path.unlink(), "lost"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"toy", b"boy")), "damaged"),
        (lambda path: path.with_name("toy_00001.7.json").write_bytes(b"{}"), "unexpected"),
    ],
)
def test_verify_watches_over_attempts(run_dir: Path, change: Callable[[Path], object], count: str) -> None:
    with open_retry(fail_some(run_dir)) as run:
        player.play(run)
    change(run_dir / "attempts/toy_00001.1.json")

    report = verify_run(run_dir, rebuild=player.rebuild)

    assert len(report.findings) == getattr(report, count) == 1


def test_damaged_transcript_is_not_kept_as_an_attempt(run_dir: Path) -> None:
    fail_some(run_dir)
    (run_dir / "transcripts/toy_00001.json").write_bytes(b"{}")

    with pytest.raises(RunDirectoryError, match=r"toy_00001\.json is not"):
        open_retry(run_dir)


def test_attempts_come_along_in_a_merge(tmp_path: Path) -> None:
    with open_retry(fail_some(tmp_path / "run"), wanted=("toy_00003",)) as run:
        player.play(run)
    before = (tmp_path / "run/toy_index.jsonl").read_bytes()

    merge_runs(
        tmp_path / "whole",
        [tmp_path / "run"],
        summarise=lambda _: {},
        plan=lambda _: player.plan(CONVERSATIONS),
        clock=SystemClock(),
    )

    assert (tmp_path / "whole/toy_index.jsonl").read_bytes() == before
    assert (tmp_path / "whole/attempts/toy_00003.1.json").exists()
    assert verify_run(tmp_path / "whole", rebuild=player.rebuild).findings == ()
    assert read_run(tmp_path / "whole").failed() == {"toy_00001"}


def _object(value: object) -> JsonObject:
    assert isinstance(value, dict)
    return value
