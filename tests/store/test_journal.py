"""Whatever befell the bytes of a journal, looking for frames finds what taking apart every line finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.store import Disk, journal
from mac_runner.store.testing import Layout, encode_frame, entry, lines, lines_with, read_state, scan
from mac_runner.types import JsonObject
from tests.store import player

LAYOUT = Layout(directory=Path("/nowhere"), experiment_name="toy")
NASTY_ID = 'a"b\\c\u00e9'


class OneSegment(Disk):
    """A disk with one file on it, read in pieces of so many bytes."""

    def __init__(self, data: bytes, size: int = 1 << 20) -> None:
        super().__init__()
        self.data, self.size = data, size

    def names(self, directory: Path) -> list[str]:
        return ["000001.jsonl"]

    def chunks(self, path: Path) -> Iterator[bytes]:
        return (self.data[start : start + self.size] for start in range(0, len(self.data), self.size))


def row(task_id: str, status: str = "finished") -> JsonObject:
    return {
        "task_id": task_id,
        "index": 0,
        "status": status,
        "failure": '"kind":"done"',
        "size_bytes": 1,
        "counts": {"turns": 1},
        "outcome": {"kind": "done"},
    }


@pytest.fixture
def segment() -> bytes:
    """Every kind of frame; the words of a model, an id and an outcome that look like one."""
    first, second, _ = player.plan(3)()
    return b"".join(
        [
            journal.session_frame(1, started_at="now"),
            journal.reply_frame(first.task_id, 0, player.answer(first, [])),
            journal.reply_frame(second.task_id, 0, player.answer(second, [])),
            journal.done_frame(row(first.task_id)),
            journal.reply_frame(NASTY_ID, 0, player.answer(second, [])),
            journal.done_frame(row(NASTY_ID, "failed")),
            journal.reply_frame(second.task_id, 1, player.answer(second, [])),
            journal.checkpoint_frame(1, elapsed_s=1.0, accounting={}),
            journal.done_frame(row(first.task_id)),
        ]
    )


def marks(data: bytes, size: int = 1 << 20) -> list[JsonObject]:
    return list(journal.marks(OneSegment(data, size), LAYOUT))


def rows(disk: Disk) -> Iterator[JsonObject]:
    return read_state(disk, LAYOUT).rows(disk, LAYOUT)


def check(data: bytes) -> None:
    """Compare with what a reader that decodes everything makes of it."""
    disk, records = OneSegment(data), scan(data).records
    done = {record["id"]: record["row"] for record in records if record["kind"] == "done"}
    replied = {record["id"] for record in records if record["kind"] == "reply"}

    assert list(journal.marks(disk, LAYOUT)) == [record for record in records if record["kind"] != "reply"]
    assert list(journal.marks(disk, LAYOUT, "done")) == [record for record in records if record["kind"] == "done"]
    assert {row["task_id"]: row for row in rows(disk)} == done
    assert len(list(rows(disk))) == len(done)
    for wanted in ("toy_00000", "toy_00001", NASTY_ID):
        # A lost reply ends what can be used of its task, so an altered one may leave none.
        assert journal.replies(disk, LAYOUT, wanted.__eq__).keys() == replied & {wanted}


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x20, 0x2A, 0xFF])
def test_any_byte_altered_costs_no_more_than_it_must(segment: bytes, mask: int) -> None:
    for position in range(0, len(segment), 3):
        altered = bytearray(segment)
        altered[position] ^= mask
        check(bytes(altered))


def test_any_newline_lost_costs_nothing(segment: bytes) -> None:
    ends = [position for position, byte in enumerate(segment) if byte == 0x0A]
    for end in ends[:-1]:
        assert marks(segment[:end] + b"?" + segment[end + 1 :]) == marks(segment)
    for position in range(0, len(segment), 7):
        check(segment[:position] + b"\n" + segment[position:])


def test_a_journal_cut_anywhere_is_read_up_to_there(segment: bytes) -> None:
    for length in range(0, len(segment), 5):
        check(segment[:length])


def test_frames_are_found_however_the_file_is_read(segment: bytes) -> None:
    for size in (1, 7, 100, 999):
        assert marks(segment, size) == marks(segment)
        found = lines_with(journal._REPLY, OneSegment(segment, size).chunks(Path()))
        assert list(found) == [line for line in lines([segment]) if b'"prompt_sha256":' in line.data]


def test_a_line_is_given_once_however_many_matches_it_holds(segment: bytes) -> None:
    merged = segment.replace(b"\n", b"?")[:-1] + b"\n"

    assert len(list(lines_with(journal._MARK, [merged]))) == 1
    assert marks(merged) == marks(segment)


def test_another_format_is_refused_by_whoever_reads_rows() -> None:
    data = encode_frame({"id": "1", "kind": "session", "session": 1, "version": 99})
    with pytest.raises(RunDirectoryError, match="is of format 99"):
        list(rows(OneSegment(data)))
    with pytest.raises(RunDirectoryError, match="is of format 99"):
        marks(data)


def test_of_a_conversation_done_twice_the_last_row_stands() -> None:
    frames = [journal.done_frame({**row(task_id), "size_bytes": n}) for n, task_id in enumerate("abab")]
    found = list(rows(OneSegment(b"".join(frames))))

    assert [(entry(one, "task_id", str), one["size_bytes"]) for one in found] == [("a", 2), ("b", 3)]
