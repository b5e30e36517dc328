"""A journal that is read on in pieces says the same as one that is read at once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner.store import Disk
from mac_runner.store.testing import (
    DoneRow,
    JournalTail,
    Layout,
    checkpoint_frame,
    done_frame,
    read_state,
    replies,
    reply_frame,
    retry_frame,
    session_frame,
)
from mac_runner.types import FinishReason, JsonObject, RecordedReply, Reply, Timing, TokenCount

ALL = {"t-0", "t-1", "t-2", "t/3"}


def row(task_id: str, index: int, status: str = "finished") -> JsonObject:
    return {"task_id": task_id, "index": index, "status": status, "size_bytes": 9, "counts": {"turns": 2}}


def reply(task_id: str, n: int, text: str = "yes") -> bytes:
    said = Reply(text=text, finish_reason=FinishReason.STOP, tokens=TokenCount(), timing=Timing())
    return reply_frame(task_id, n, RecordedReply(turn_key=f"{n}/Abel/0/0", prompt_sha256="0" * 64, reply=said))


def sessions() -> list[list[bytes]]:
    """Three sessions: a failed conversation that is retried, one that was killed in a reply, one that goes on."""
    first = [
        session_frame(1, started_at="2026-01-01T00:00:00Z"),
        *(reply("t-0", n) for n in range(3)),
        reply("t-1", 0),
        done_frame(row("t-0", 0)),
        b"00000000 {damaged}\n",
        done_frame(row("t-1", 1, "failed")),
        reply("t-2", 0),
        reply("t-2", 1, "lost"),
    ]
    second = [
        session_frame(2, started_at="2026-01-02T00:00:00Z"),
        retry_frame(row("t-1", 1, "failed")),
        reply("t-2", 1, "again"),
        reply("t-1", 0, "better"),
        checkpoint_frame(2, elapsed_s=3.0, accounting={}),
        done_frame(row("t-1", 1)),
    ]
    third = [session_frame(3, started_at="2026-01-03T00:00:00Z"), reply("t-2", 2), reply("t/3", 0, "\x00<b>")]
    return [first, second, third]


def test_reading_on_in_pieces_says_what_reading_at_once_says(tmp_path: Path) -> None:
    """After any cut, also in the middle of a frame: endings, rows that count, replies of open conversations."""
    layout = Layout(directory=tmp_path, experiment_name="small")
    layout.journal.mkdir()
    for seed in range(30):
        shutil.rmtree(layout.journal)
        layout.journal.mkdir()
        disk, chance, rows = Disk(), random.Random(seed), list[DoneRow]()
        tail = JournalTail(disk, layout)
        for number, frames in enumerate(sessions(), start=1):
            data, written = b"".join(frames), 0
            while written < len(data):
                size = chance.choice((1, 7, 60, 300, 5000))
                with layout.segment(number).open("ab") as file:
                    file.write(data[written : written + size])
                written += size
                if tail.read_on(rows.append).is_anew:
                    rows = list(tail.state.json_rows(disk, layout))

                whole = read_state(disk, layout)
                assert tail.state.endings == whole.endings, seed
                assert rows == list(whole.json_rows(disk, layout)), seed
                expected = replies(disk, layout, set(ALL - whole.endings.keys()).__contains__)
                assert tail.replied == expected.keys(), seed
                assert {task_id: tail.replies(task_id) for task_id in expected} == expected, seed
        whole = read_state(disk, layout)
        assert [session.usage for session in tail.state.sessions] == [session.usage for session in whole.sessions]
        assert [each.reply.text for each in tail.replies("t-2")] == ["yes", "again", "yes"]


def test_journal_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    layout = Layout(directory=tmp_path, experiment_name="small")
    layout.journal.mkdir()
    layout.segment(1).write_bytes(b"".join(sessions()[0]))
    tail, rows = JournalTail(Disk(), layout), list[DoneRow]()
    assert not tail.read_on(rows.append).is_anew
    assert [each.task_id for each in rows] == ["t-0", "t-1"]

    for change in ("shorter", "another file", "gone"):
        layout.segment(1).unlink()
        if change != "gone":
            frames = [session_frame(1, started_at="2027-01-01T00:00:00Z"), done_frame(row("u-0", 0))]
            layout.segment(1).write_bytes(b"".join(frames * (1 if change == "shorter" else 50)))
        assert tail.read_on(rows.append).is_anew, change
        assert tail.state.endings.keys() == (set() if change == "gone" else {"u-0"}), change


def test_second_look_at_a_journal_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(directory=tmp_path, experiment_name="small")
    layout.journal.mkdir()
    layout.segment(1).write_bytes(b"".join(sessions()[0]))
    tail, rows = JournalTail(Disk(), layout), list[DoneRow]()
    tail.read_on(rows.append)

    def refuse(path: Path, *_rest: int) -> Iterator[bytes]:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("mac_runner.store.tail.chunks_from", refuse)

    assert tail.read_on(rows.append).replied == frozenset()
