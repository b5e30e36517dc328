"""Transcripts written again from the journal, whatever breaks off while that is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, Run, read_run, verify_run
from mac_runner.types import JsonObject, RecordedReply, Task
from tests.kit import copied
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock

CONVERSATIONS = 4
FAILED = "toy_00003"


def open_thorough(run_dir: Path, disk: Disk | None = None, conversations: int = CONVERSATIONS) -> Run:
    def restore(task: Task, replies: Sequence[RecordedReply], row: JsonObject) -> JsonObject:
        return player.transcript(task, list(replies), str(row["failure"]) if row["failure"] else None)

    return player.open_toy(run_dir, conversations, clock=StillClock(), disk=disk, restore=restore, is_thorough=True)


def leave_damaged(run_dir: Path) -> dict[str, bytes]:
    """A run with an altered transcript, one gone, a failed one cut and two notes lost; what all of them were."""
    with player.open_toy(run_dir, CONVERSATIONS) as run:
        for task, _ in run.unfinished():
            replies: list[RecordedReply] = []
            while len(replies) < (2 if task.task_id == FAILED else player.TURNS):
                replies.append(player.answer(task, replies))
                run.reply(task, replies[-1])
            run.publish(task, player.transcript(task, replies, "no answer" if task.task_id == FAILED else None))
    whole = contents(run_dir)
    altered = run_dir / "transcripts/toy_00000.json"
    altered.write_bytes(altered.read_bytes().replace(b"says", b"sayz", 1))
    (run_dir / "transcripts/toy_00001.json").unlink()
    cut = run_dir / f"transcripts/{FAILED}.json"
    cut.write_bytes(cut.read_bytes()[:100])
    segment = run_dir / "journal/000001.jsonl"
    lost = [b'"%b","kind":"done"' % task_id for task_id in (b"toy_00001", b"toy_00002")]
    frames = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(frame for frame in frames if not any(mark in frame for mark in lost)))
    return whole


def contents(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run_dir / "transcripts").iterdir()}


def test_what_is_damaged_or_gone_is_written_again_and_the_index_stays(run_dir: Path) -> None:
    whole = leave_damaged(run_dir)
    index = (run_dir / "toy_index.jsonl").read_bytes()

    with open_thorough(run_dir) as run:
        repairs = run.repairs
        assert run.counts == (CONVERSATIONS, CONVERSATIONS - 1, 1)

    assert repairs.set_aside == ["toy_00000", FAILED]
    assert repairs.restored == ["toy_00000", "toy_00001", FAILED]
    assert (repairs.adopted, repairs.reopened) == (["toy_00002"], [])
    assert contents(run_dir) == whole
    assert (run_dir / "toy_index.jsonl").read_bytes() == index
    assert (run_dir / "damaged/toy_00000.json").read_bytes() != whole["toy_00000.json"]
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


@pytest.mark.ci
def test_repair_broken_off_at_any_call_is_ended_by_the_next_one(
    tmp_path: Path, system: FaultySystem, disk: Disk
) -> None:
    whole = leave_damaged(tmp_path / "damaged")
    with open_thorough(copied(tmp_path / "damaged", tmp_path / "reference"), disk):
        pass
    for fail_at in range(1, len(system.calls) + 1):
        run_dir = copied(tmp_path / "damaged", tmp_path / str(fail_at))
        system.calls.clear()
        system.fail_at = fail_at
        with pytest.raises(StoreError), open_thorough(run_dir, disk):
            pass
        with open_thorough(run_dir):
            pass
        assert contents(run_dir) == whole, fail_at
        assert verify_run(run_dir, rebuild=player.rebuild).findings == (), fail_at
        assert {path.name for path in (run_dir / "damaged").iterdir()} == {"toy_00000.json", f"{FAILED}.json"}


def test_conversation_that_was_retried_is_not_restored_as_it_failed(run_dir: Path) -> None:
    """Its old row may stand in the index when a retry is killed; the attempt after it is what counts."""
    leave_damaged(run_dir)
    with open_thorough(run_dir):
        index = (run_dir / "toy_index.jsonl").read_bytes()
    with player.open_toy(run_dir, CONVERSATIONS, is_retried=FAILED.__eq__):
        pass
    (run_dir / "toy_index.jsonl").write_bytes(index)

    with open_thorough(run_dir) as run:
        assert run.repairs.restored == []
        assert [task.task_id for task, _ in run.unfinished()] == [FAILED]
    assert read_run(run_dir).under_retry() == {FAILED}
