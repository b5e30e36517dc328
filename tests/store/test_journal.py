"""The journal: its frames, whatever befell their bytes, and those who look for some of them or read on in pieces."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.errors import RunDirectoryError
from mac_runner.store import Disk, journal, records
from mac_runner.store.testing import (
    DoneRow,
    JournalTail,
    Layout,
    checkpoint_frame,
    decode_frame,
    done_frame,
    encode_frame,
    encode_json,
    entry,
    lines,
    lines_with,
    read_state,
    replies,
    reply_frame,
    retry_frame,
    session_frame,
)
from mac_runner.types import JsonObject, RecordedReply, Reply
from tests.store import player
from tests.store.frames import scan

LAYOUT = Layout(directory=Path("/nowhere"), experiment_name="toy")
NASTY_ID = 'a"b\\c\u00e9'


class OneSegment(Disk):
    """A disk with one file on it, read in pieces of so many bytes."""

    def __init__(self, data: bytes, size: int = 1 << 20) -> None:
        super().__init__()
        self.data, self.size = data, size

    def names(self, directory: Path) -> list[str]:
        return ["000001.jsonl"]

    def chunks(self, path: Path, start: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
        return (self.data[at : at + self.size] for at in range(start, len(self.data), self.size))


def row(task_id: str, status: str = "finished") -> JsonObject:
    return {
        "task_id": task_id,
        "index": 0,
        "status": status,
        "failure": '"kind":"done"',
        "sha256": "0" * 64,
        "size_bytes": 1,
        "counts": {
            "turns": 1,
            "corrections": 0,
            "defaults": 0,
            "tokens": {"prompt": 9, "completion": 3, "timing": {"cached": 0}},
        },
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


def marks(data: bytes, size: int = 1 << 20) -> list[journal.Entry]:
    """Every entry but the replies, found as readers find them."""
    found = lines_with(journal.MARK, OneSegment(data, size).chunks(Path()))
    return [
        one for line in found for one in journal.entries(Path(), line)[0] if not isinstance(one, journal.ReplyFrame)
    ]


def rows(disk: Disk) -> Iterator[JsonObject]:
    return read_state(disk, LAYOUT).rows(disk, LAYOUT)


def check(data: bytes) -> None:
    """Compare with what a reader that decodes everything makes of it."""
    disk, records = OneSegment(data), scan(data).records
    done = {record["id"]: record["row"] for record in records if record["kind"] == "done"}
    replied = {record["id"] for record in records if record["kind"] == "reply"}

    assert marks(data) == [journal.entry_of(Path(), record) for record in records if record["kind"] != "reply"]
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


def test_any_newline_lost_or_cut_costs_nothing_that_stands_before_it(segment: bytes) -> None:
    ends = [position for position, byte in enumerate(segment) if byte == 0x0A]
    for end in ends[:-1]:
        assert marks(segment[:end] + b"?" + segment[end + 1 :]) == marks(segment)
    for position in range(0, len(segment), 7):
        check(segment[:position] + b"\n" + segment[position:])
    for length in range(0, len(segment), 5):
        check(segment[:length])


def test_frames_are_found_however_the_file_is_read(segment: bytes) -> None:
    for size in (1, 7, 100, 999):
        assert marks(segment, size) == marks(segment)
        found = lines_with(journal.REPLY, OneSegment(segment, size).chunks(Path()))
        assert list(found) == [line for line in lines([segment]) if b'"prompt_sha256":' in line.data]


def test_a_line_is_given_once_however_many_matches_it_holds(segment: bytes) -> None:
    merged = segment.replace(b"\n", b"?")[:-1] + b"\n"

    assert len(list(lines_with(journal.MARK, [merged]))) == 1
    assert marks(merged) == marks(segment)


def test_another_format_is_refused_by_whoever_reads_rows() -> None:
    data = encode_frame({"id": "1", "kind": "session", "session": 1, "version": 99})
    with pytest.raises(RunDirectoryError, match="version is 99"):
        list(rows(OneSegment(data)))
    with pytest.raises(RunDirectoryError, match="version is 99"):
        marks(data)


def test_of_a_conversation_done_twice_the_last_row_stands() -> None:
    frames = [journal.done_frame({**row(task_id), "size_bytes": n}) for n, task_id in enumerate("abab")]
    found = list(rows(OneSegment(b"".join(frames))))

    assert [(entry(one, "task_id", str), one["size_bytes"]) for one in found] == [("a", 2), ("b", 3)]


def test_a_row_of_another_form_is_refused_by_file_task_and_key() -> None:
    odd = journal.done_frame({**row("a"), "counts": {"turns": 1}})

    with pytest.raises(RunDirectoryError, match=r"000001\.jsonl .* of a .*`corrections`"):
        read_state(OneSegment(odd), LAYOUT)


RECORDS: list[JsonObject] = [
    {"id": f"t{i}", "kind": "reply", "text": f'say {{"id":"t9"}} \n\u2028\0\ud800 {i} 1a2b3c4d {{"x"'} for i in range(6)
]

FRAMES = [encode_frame(record) for record in RECORDS]
FILE = b"".join(FRAMES)

texts = st.text(st.characters(exclude_categories=())).filter(lambda text: text == round_trip_of_pairs(text))


def round_trip_of_pairs(text: str) -> str:
    """JSON reads a high and a low surrogate side by side as the one character they mean."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


@pytest.mark.parametrize("key", ["metrics", "outcome"])
def test_row_with_a_number_that_is_not_json_is_refused_before_anybody_adds_it_up(key: str) -> None:
    data = encode_json({**row("a"), key: {"x": 0}}).replace(b'{"x":0}', b'{"x":NaN}')

    with pytest.raises(ValueError, match="not JSON compliant"):
        DoneRow("a", data).parsed  # noqa: B018


@given(st.lists(st.dictionaries(texts, texts | st.integers() | st.none(), min_size=1), max_size=5))
def test_frames_bring_back_any_text(records: list[JsonObject]) -> None:
    found = scan(b"".join(map(encode_frame, records)))

    assert found.records == tuple(records)
    assert found.damage == ()


def test_frame_is_one_line_of_ascii_the_same_for_equal_values_and_not_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(frame.isascii() and frame.count(b"\n") == frame.endswith(b"\n") == 1 for frame in FRAMES)
    assert encode_json({"b": 1, "a": [2]}) == encode_json({"a": [2], "b": 1}) == b'{"a":[2],"b":1}'
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode_json({"x": value})
    monkeypatch.setattr(records, "FRAME_BYTES_MAX", 1_000)
    with pytest.raises(ValueError, match="than a frame"):
        encode_frame({"text": "x" * 2_000})


def test_scan_of_a_file_cut_anywhere_finds_all_whole_frames_and_no_damage() -> None:
    ends = [len(b"".join(FRAMES[:n])) for n in range(len(FRAMES) + 1)]
    for length in range(len(FILE) + 1):
        found = scan(FILE[:length])
        whole = sum(end <= length for end in ends) - 1

        assert found.records == tuple(RECORDS[:whole])
        assert found.good_length == ends[whole]
        assert found.damage == ()


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x20, 0x80, 0xFF])
def test_scan_with_any_byte_altered_accepts_no_other_record_and_loses_at_most_one(mask: int) -> None:
    for position in range(len(FILE)):
        altered = bytearray(FILE)
        altered[position] ^= mask
        found = scan(bytes(altered))

        assert all(record in RECORDS for record in found.records)
        assert len(found.records) >= len(RECORDS) - 1
        assert found.damage or found.good_length < len(FILE)


def test_scan_with_any_byte_turned_into_a_newline_loses_at_most_one_record() -> None:
    for position in range(len(FILE)):
        found = scan(FILE[:position] + b"\n" + FILE[position + 1 :])

        assert all(record in RECORDS for record in found.records)
        assert len(found.records) >= len(RECORDS) - 1


def test_damage_names_its_place() -> None:
    found = scan(FRAMES[0] + b"garbage\n" + FRAMES[1])

    assert found.records == (RECORDS[0], RECORDS[1])
    assert list(found.damage) == [(len(FRAMES[0]), 7)]


@given(st.binary(max_size=300))
def test_scan_takes_no_garbage_for_a_record(data: bytes) -> None:
    found = scan(data)

    assert found.records == ()
    assert found.good_length <= len(data)


@given(st.integers(1, 700))
def test_lines_do_not_depend_on_how_the_file_is_read(size: int) -> None:
    assert list(lines(in_pieces(FILE + b"torn", size))) == list(lines([FILE + b"torn"]))


def test_line_longer_than_a_frame_is_measured_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FRAME_BYTES_MAX", 1_000)
    data = FRAMES[0] + b"x" * 5_000 + b"\n" + FRAMES[1]
    long = list(lines(in_pieces(data, 64)))[1]

    assert (long.offset, long.size_bytes, long.data, long.is_ended) == (len(FRAMES[0]), 5_000, b"", True)
    assert [decode_frame(line.data) is not None for line in lines(in_pieces(data, 64))] == [True, False, True]


ALL = {"t-0", "t-1", "t-2", "t/3"}


def said(task_id: str, n: int, text: str = "yes") -> bytes:
    return reply_frame(
        task_id, n, RecordedReply(turn_key=f"{n}/Abel/0/0", prompt_sha256="0" * 64, reply=Reply(text=text))
    )


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A journal of one session."""
    found = Layout(directory=tmp_path, experiment_name="small")
    found.journal.mkdir()
    found.segment(1).write_bytes(b"".join(sessions()[0]))
    return found


def sessions() -> list[list[bytes]]:
    """Three sessions: a failed conversation that is retried, one that was killed in a reply, one that goes on."""
    first = [
        session_frame(1, started_at="2026-01-01T00:00:00Z"),
        *(said("t-0", n) for n in range(3)),
        said("t-1", 0),
        done_frame(row("t-0")),
        b"00000000 {damaged}\n",
        done_frame(row("t-1", "failed")),
        said("t-2", 0),
        said("t-2", 1, "lost"),
    ]
    second = [
        session_frame(2, started_at="2026-01-02T00:00:00Z"),
        retry_frame(row("t-1", "failed")),
        said("t-2", 1, "again"),
        said("t-1", 0, "better"),
        checkpoint_frame(2, elapsed_s=3.0, accounting={}),
        done_frame(row("t-1")),
    ]
    third = [session_frame(3, started_at="2026-01-03T00:00:00Z"), said("t-2", 2), said("t/3", 0, "\x00<b>")]
    return [first, second, third]


def test_reading_on_in_pieces_says_what_reading_at_once_says(layout: Layout) -> None:
    """After any cut, also in the middle of a frame: endings, rows that count, replies of open conversations."""
    for seed in range(30):
        shutil.rmtree(layout.journal)
        layout.journal.mkdir()
        disk, chance, rows = Disk(), random.Random(seed), list[DoneRow]()
        tail = JournalTail(disk, layout, keeps_replies=True)
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


def test_attempt_that_two_processes_open_again_at_once_counts_once(layout: Layout) -> None:
    failed = row("t-1", "failed")
    frames = [done_frame(failed), retry_frame(failed), retry_frame(failed), done_frame(failed), retry_frame(failed)]
    layout.segment(1).write_bytes(b"".join(frames))

    state = read_state(Disk(), layout)

    assert (state.attempts, state.failed) == ({"t-1": [failed, failed]}, 0)


def test_journal_that_was_replaced_is_read_anew(layout: Layout) -> None:
    tail, rows = JournalTail(Disk(), layout, keeps_replies=True), list[DoneRow]()
    assert not tail.read_on(rows.append).is_anew
    assert [each.task_id for each in rows] == ["t-0", "t-1"]

    for change in ("shorter", "another file", "gone"):
        layout.segment(1).unlink()
        if change != "gone":
            frames = [session_frame(1, started_at="2027-01-01T00:00:00Z"), done_frame(row("u-0"))]
            layout.segment(1).write_bytes(b"".join(frames * (1 if change == "shorter" else 50)))
        assert tail.read_on(rows.append).is_anew, change
        assert tail.state.endings.keys() == (set() if change == "gone" else {"u-0"}), change


@pytest.mark.parametrize("keeps_replies", [False, True])
def test_damaged_line_is_counted_whatever_the_lines_beside_it_hold(layout: Layout, keeps_replies: bool) -> None:
    """An outcome that looks like a reply, and a reply that lost its newline, are no replies that were skipped."""
    begin, damaged = session_frame(1, started_at="2026-01-01T00:00:00Z"), b"00000000 {damaged}\n"
    beside = {
        "outcome": (done_frame({**row("t-0"), "outcome": {"a": "b", "kind": "reply", "z": 1}}), 1),
        "newline": (said("t-0", 0)[:-1] + b"x" + done_frame(row("t-0")), 2),
    }
    for name, (line, lines_damaged) in beside.items():
        layout.segment(1).write_bytes(begin + damaged + line)
        for number in (2, 3):
            layout.segment(number).unlink(missing_ok=True)
        tail = JournalTail(Disk(), layout, keeps_replies=keeps_replies)
        tail.read_on()
        assert tail.state.endings.keys() == {"t-0"}, name
        assert tail.state.damaged_lines == lines_damaged, name


def test_second_look_at_a_journal_opens_no_file(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    tail, rows = JournalTail(Disk(), layout, keeps_replies=True), list[DoneRow]()
    tail.read_on(rows.append)

    def refuse(_self: Disk, path: Path, *_rest: int) -> Iterator[bytes]:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(Disk, "chunks", refuse)

    assert tail.read_on(rows.append).replied == frozenset()


def test_frames_whose_newline_was_lost_are_read_on_as_they_are_read_at_once(layout: Layout) -> None:
    """A reply and what stands behind it on its line, whichever it is."""
    for segment, frames in enumerate(sessions(), start=1):
        for place in range(len(frames) - 1):
            damaged = [*frames]
            damaged[place] = damaged[place][:-1] + b"x"
            layout.segment(segment).write_bytes(b"".join(damaged))
            disk, tail = Disk(), JournalTail(Disk(), layout, keeps_replies=True)
            tail.read_on()

            whole = read_state(disk, layout)
            expected = replies(disk, layout, set(ALL - whole.endings.keys()).__contains__)
            assert tail.state.endings == whole.endings, (segment, place)
            assert {task_id: tail.replies(task_id) for task_id in expected} == expected, (segment, place)
            assert tail.replied == expected.keys(), (segment, place)
        layout.segment(segment).write_bytes(b"".join(frames))
