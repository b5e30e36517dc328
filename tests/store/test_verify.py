"""What verify finds, and transcripts written again from the journal, whatever breaks off while that is done."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.runs.testing import summary_of
from mac_runner.store import (
    Disk,
    Finding,
    FindingKind,
    LeasesRecord,
    Repairs,
    RunRecorder,
    VerifyReport,
    is_complete,
    read_run,
    read_standing,
    verify_run,
)
from mac_runner.store.testing import (
    JournalTail,
    Layout,
    decode_frame,
    encode_frame,
    encode_leases,
    entry,
    locked,
)
from mac_runner.types import JsonObject, JsonValue, RecordedReply, Task
from tests.attacks.mutation import places
from tests.kit import copied, known, stale_files
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock, both, edit, failing_calls, files, flip, lose_endings

CONVERSATIONS = 4
ONE = "toy_00001"
TRANSCRIPT, INDEX, JOURNAL = f"transcripts/{ONE}.json", "toy_index.jsonl", "journal/000001.jsonl"


def play_all(run_dir: Path) -> Repairs:
    """A session in which nothing is left to be played, or all; what it repaired."""
    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert player.play(run) in (0, CONVERSATIONS * player.TURNS)
        run.write_summary({})
    return run.repairs


def results(run_dir: Path) -> dict[str, bytes]:
    return {**files(run_dir / "transcripts"), INDEX: (run_dir / INDEX).read_bytes()}


@pytest.fixture
def played(run_dir: Path) -> Path:
    """A run that is complete."""
    play_all(run_dir)
    return run_dir


class Harm(NamedTuple):
    """What befell a complete run, what `verify` finds then, what the next session repairs, and what it leaves."""

    befall: Callable[[Path], object]
    found: str = ""
    repaired: Mapping[str, JsonValue] = {}
    left: str = ""
    is_complete: bool = False
    """Whether a survey takes the run for complete all the same."""


def gone(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).unlink()


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda run: edit(run / name, change)


def relined(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], object]:
    """The lines of the index are others."""
    return changed(INDEX, lambda data: b"".join(change(data.splitlines(keepends=True))))


def orphan(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """The note of a conversation is lost, and its transcript is another."""
    return both(lambda run: lose_endings(run, ONE), changed(TRANSCRIPT, change))


def another_letter(data: bytes) -> bytes:
    return data.replace(b'"detail": "says"', b'"detail": "sayz"', 1)


UNKNOWN = "lost unexpected"
SET_ASIDE: Mapping[str, JsonValue] = {"set_aside": [ONE], "reopened": [ONE]}
HARMS = {
    "nothing": Harm(lambda run: None, is_complete=True),
    "transcript gone": Harm(gone(TRANSCRIPT), "lost", {"missing": [ONE], "reopened": [ONE]}),
    "transcript of other words": Harm(
        changed(TRANSCRIPT, lambda data: data.replace(b"toy", b"boy")), "damaged", left="damaged", is_complete=True
    ),
    "transcript with a byte more": Harm(changed(TRANSCRIPT, lambda data: data + b"\n"), "damaged", SET_ASIDE),
    "a stranger": Harm(
        lambda run: (run / "transcripts/stranger.json").write_bytes(b"{}"), "unexpected", {"set_aside": ["stranger"]}
    ),
    "row twice": Harm(relined(lambda rows: [*rows, rows[0]])),
    "row gone": Harm(relined(lambda rows: rows[1:])),
    "row torn": Harm(relined(lambda rows: [*rows[:-1], rows[-1][:-9]])),
    "row altered": Harm(changed(INDEX, lambda data: data.replace(b'"turns":4', b'"turns":5', 1))),
    "row of nothing": Harm(relined(lambda rows: [*rows, b"{}\n"])),
    "row that is no JSON": Harm(relined(lambda rows: [*rows, b"{\n"])),
    "row of a stranger": Harm(relined(lambda rows: [*rows, b'{"task_id": "x"}\n'])),
    "index empty": Harm(relined(lambda rows: [])),
    "index gone": Harm(gone(INDEX)),
    "summary gone": Harm(gone("summary.json"), is_complete=True),
    "frame altered": Harm(
        changed(JOURNAL, lambda data: data.replace(b'"turn":"1/', b'"turn":"2/', 1)),
        "damaged",
        left="damaged",
        is_complete=True,
    ),
    "note lost": Harm(lambda run: lose_endings(run, ONE), UNKNOWN, {"adopted": [ONE]}),
    "orphan empty": Harm(orphan(lambda data: b""), UNKNOWN, SET_ASIDE),
    "orphan that is no JSON": Harm(orphan(lambda data: b"{"), UNKNOWN, SET_ASIDE),
    "orphan without replies": Harm(
        orphan(lambda data: b'{"format": 1, "task": {"task_id": "toy_00000"}}'), UNKNOWN, SET_ASIDE
    ),
    "orphan of another seed": Harm(orphan(lambda data: data.replace(b'"seed": ', b'"seed": 1')), UNKNOWN, SET_ASIDE),
    # The index knows better, where there is one.
    "orphan of another digest": Harm(orphan(another_letter), UNKNOWN, SET_ASIDE),
    "orphan of another digest, and no index": Harm(
        both(orphan(another_letter), gone(INDEX)),
        UNKNOWN,
        {"adopted": [ONE]},
        left="mismatched",
    ),
    "last manifest torn": Harm(
        lambda run: (run / ".tmp-0badcafe-4242-000000000000").touch(), repaired={"temporaries_removed": 1}
    ),
    "log of events torn": Harm(changed("events.jsonl", lambda data: b'{"time":"20'), is_complete=True),
}


@pytest.mark.parametrize("name", HARMS)
def test_what_befell_a_run_is_found_and_made_right_by_the_next_session(played: Path, name: str) -> None:
    harm, whole = HARMS[name], results(played)
    harm.befall(played)
    harmed = files(played / "transcripts")

    assert [finding.kind for finding in player.verified(played).findings] == harm.found.split()
    assert player.surveyed(played, CONVERSATIONS).is_complete is harm.is_complete
    assert is_complete(player.asked(played, CONVERSATIONS)) is harm.is_complete
    repairs = play_all(played).as_json() or {}
    assert {key: value for key, value in repairs.items() if value and key != "index_rewritten"} == harm.repaired
    assert [finding.kind for finding in player.verified(played).findings] == harm.left.split()
    assert (results(played) == whole) is (not harm.left or name == "frame altered")
    assert stale_files(played) == []
    assert player.surveyed(played, CONVERSATIONS).is_complete
    for task_id in entry(repairs, "set_aside", list) if repairs else ():
        assert (played / f"damaged/{task_id}.json").read_bytes() == harmed[f"{task_id}.json"]
        assert f'"set_aside":["{task_id}"]' in (played / "events.jsonl").read_text()


UNREADABLE: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda data: b"{",
    "a task less": lambda data: data.replace(b"\n".join(data.splitlines()[6:7]) + b"\n", b""),
    "another name": lambda data: data.replace(b'"task_id": "toy_00001"', b'"task_id": "toy_00009"'),
}


@pytest.mark.parametrize("name", ["missing", *UNREADABLE])
def test_manifest_that_cannot_be_read_is_written_anew_and_said_so(played: Path, name: str) -> None:
    path = played / "task_manifest.json"
    whole = json.loads(path.read_bytes())
    path.unlink() if name == "missing" else changed(path.name, UNREADABLE[name])(played)

    with pytest.raises(RunDirectoryError, match="writes it again" if name == "missing" else path.name):
        read_run(played)
    assert play_all(played).manifest_unreadable is (name != "missing")
    assert json.loads(path.read_bytes())["tasks"] == whole["tasks"]


def test_what_mends_a_finding_does_not_depend_on_its_words() -> None:
    finding = Finding(FindingKind.DAMAGED, "are no intact frame.json: its transcript is not what was acknowledged")
    report = VerifyReport(attempted=1, acknowledged=1, findings=(finding,))

    assert report.is_repairable
    assert not report.has_damaged_journal


def test_verify_plays_every_transcript_again(played: Path, snapshot: SnapshotAssertion) -> None:
    def other(transcript: JsonObject) -> JsonObject:
        return {**player.rebuild(transcript), "outcome": {"last": 1}}

    report = verify_run(played, rebuild=other)

    assert report.mismatched == 4
    assert report.findings[0].text == snapshot


def test_verify_ignores_time_and_nothing_else_and_takes_a_rebuild_that_fails_for_a_mismatch(played: Path) -> None:
    def broken(transcript: JsonObject) -> JsonObject:
        raise KeyError("Ann")

    def late(transcript: JsonObject) -> JsonObject:
        return {**player.rebuild(transcript), "timing": {"wall_s": 99.0}}

    assert verify_run(played, rebuild=late).ok
    assert not verify_run(played, rebuild=lambda found: {**json.loads(json.dumps(late(found))), "extra": 1}).ok
    assert verify_run(played, rebuild=broken).mismatched == 4


def test_row_that_is_not_that_of_its_transcript_is_found_though_its_frame_is_intact(
    played: Path, snapshot: SnapshotAssertion
) -> None:
    segment = played / "journal/000001.jsonl"
    lines = [json.loads(line[9:]) for line in segment.read_bytes().splitlines()]
    for record in lines:
        if record["kind"] == "done" and record["id"] == "toy_00002":
            record["row"]["counts"]["turns"] = 3
    segment.write_bytes(b"".join(map(encode_frame, lines)))

    assert [finding.text for finding in player.verified(played).findings] == snapshot


def test_temporary_files_are_no_results_and_no_damage(played: Path, snapshot: SnapshotAssertion) -> None:
    (played / "attempts").mkdir()
    for place in (".", "journal", "transcripts", "attempts"):
        (played / place / ".tmp-0badcafe-4242-000000000000").touch()

    report = player.verified(played)

    assert report.findings == ()
    assert report.notes == snapshot
    assert play_all(played).temporaries_removed == 4
    assert not list(played.rglob(".tmp-*"))


def test_stranger_among_the_transcripts_is_told_from_a_transcript(played: Path, snapshot: SnapshotAssertion) -> None:
    for name in ("notes.txt", "toy_00009.json"):
        (played / "transcripts" / name).touch()

    report = player.verified(played)
    assert ([finding.text for finding in report.findings], report.notes) == snapshot


SYSTEMS_PUT = (
    ".nfs0000000000c8",
    ".DS_Store",
    ".ipynb_checkpoints/",
    "._toy_00001.json",
    ".fuse_hidden01",
    "lost+found/",
)


def test_files_that_no_run_writes_are_named_and_held_against_nothing(played: Path) -> None:
    """Not by verify, not by a survey and not by the next session, which leaves them there."""
    dice = Random(11)
    for _ in range(8):
        put = {
            (place, name)
            for place in ("", "journal", "transcripts", "traces", "attempts")
            for name in dice.sample(SYSTEMS_PUT, 2)
            if place or name.startswith(".")
        }
        strangers = [played / place / name for place, name in put]
        for path, (_, name) in zip(strangers, put, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.mkdir() if name.endswith("/") else path.write_text("{}")

        report = player.verified(played)
        assert report.ok, report.findings
        assert f"{len(put)} files" in report.notes[0]
        assert is_complete(player.asked(played, CONVERSATIONS))
        assert play_all(played) == Repairs()
        for path in strangers:
            path.rmdir() if path.is_dir() else path.unlink()


ODD: Sequence[JsonValue] = (None, True, -1, 1.5, "\ud800", [], {}, [1], {"a": 1})
READERS: Sequence[Callable[[Path], object]] = (
    read_standing,
    lambda run: summary_of(read_run(run)),
    lambda run: player.surveyed(run, CONVERSATIONS),
    lambda run: JournalTail(Disk(), Layout(directory=run, experiment_name=player.NAME)).read_on(lambda _row: None),
)


def test_record_of_another_form_is_a_finding_of_verify_and_an_error_of_every_reader(played: Path) -> None:
    """Its checksum is right, and something is missing in it or is of another type."""
    segment = played / JOURNAL
    frames, dice = segment.read_bytes().splitlines(keepends=True), Random(5)
    found = Counter[str]()
    for _ in range(80):
        number = dice.randrange(len(frames))
        record = known(decode_frame(frames[number][:-1]))
        holder, key = dice.choice(places(record))
        is_gone = dice.random() < 0.5
        if is_gone:
            del holder[key]
        else:
            holder[key] = dice.choice(ODD)
        segment.write_bytes(b"".join([*frames[:number], encode_frame(record), *frames[number + 1 :]]))

        report = player.verified(played)
        of_a_session = str(record.get("kind")) in {"session", "checkpoint"}
        assert not (report.ok and is_gone) or of_a_session or key == "model", record
        found["finding" if not report.ok else "as good"] += 1
        for read in READERS:
            with suppress(RunDirectoryError):
                read(played)
    assert found["finding"] > 40


def test_run_that_is_played_while_it_is_verified_is_not_damaged(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    """Between any two looks of the checker conversations begin, end, are acknowledged and get their rows."""
    player.played(run_dir, 3)
    run = player.open_toy(run_dir, 9)

    def meanwhile(transcript: JsonObject) -> JsonObject:
        if run.counts.done < 6:
            player.play(run, turns=player.TURNS + 1)
            run.contents()
        rebuilt: JsonObject = player.rebuild(transcript)
        return rebuilt

    with run:
        player.play(run, turns=6)
        run.contents()
        report = verify_run(run_dir, rebuild=meanwhile)
        # As a process that is slow leaves it for a moment: published, and not acknowledged.
        (run_dir / "transcripts/toy_00008.json").touch()
        half_way = player.verified(run_dir)
        (run_dir / "transcripts/toy_00000.json").unlink()
        lost = player.verified(run_dir)

    for found in (report, half_way):
        assert found.findings == ()
        assert f"under way (pid {os.getpid()} on " in found.notes[-1]
        assert "has ended" in found.notes[-1]
    assert [finding.text for finding in lost.findings] == snapshot
    assert not any("under way" in note for note in player.verified(run_dir).notes)


def test_run_that_workers_play_while_it_is_verified_is_not_damaged(played: Path) -> None:
    record = LeasesRecord(of=2, experiment_name=player.NAME, identity="of these", conversations=9)
    (played / "leases.json").write_bytes(encode_leases(record))
    # Published, and not acknowledged yet.
    (played / "transcripts/toy_00008.json").touch()

    with locked(Disk(), played / "leases" / "2-of-2"):
        meanwhile = player.verified(played)
    after = player.verified(played)

    assert meanwhile.findings == ()
    assert f"under way (pid {os.getpid()} on " in meanwhile.notes[-1]
    assert [finding.kind for finding in after.findings] == [FindingKind.UNEXPECTED]


def test_run_that_begins_and_ends_while_it_is_verified_is_not_damaged(played: Path) -> None:
    is_new = True

    def meanwhile(transcript: JsonObject) -> JsonObject:
        nonlocal is_new
        if is_new:
            is_new = False
            player.played(played, 7)
        rebuilt: JsonObject = player.rebuild(transcript)
        return rebuilt

    report = verify_run(played, rebuild=meanwhile)

    assert report.findings == ()
    assert "ended meanwhile" in report.notes[-1]


def test_summary_that_is_written_before_the_run_closes_is_of_the_times_that_stand(run_dir: Path) -> None:
    """However long the closing takes: it finds nothing new to account for."""
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
        run.checkpoint({"models": {}})
        run.write_summary(written := summary_of(run.contents()))
        run.contents()

    assert summary_of(read_run(run_dir)) == written


FAILED = "toy_00003"
REPAIRED = 5


def open_thorough(run_dir: Path, disk: Disk | None = None) -> RunRecorder:
    def restore(task: Task, replies: Sequence[RecordedReply], row: JsonObject) -> JsonObject:
        return player.transcript(task, list(replies), str(row["failure"]) if row["failure"] else None)

    return player.open_toy(run_dir, REPAIRED, clock=StillClock(), disk=disk, restore=restore, is_thorough=True)


def leave_damaged(run_dir: Path) -> dict[str, bytes]:
    """A run with an altered transcript, one gone, a failed one cut and two notes lost; what all of them were.

    Where there are tokens, some of them are gone, and some altered.
    """
    player.played(run_dir, REPAIRED, failing={FAILED})
    whole = contents(run_dir)
    changed("transcripts/toy_00000.json", lambda data: data.replace(b"says", b"sayz", 1))(run_dir)
    gone(TRANSCRIPT)(run_dir)
    changed(f"transcripts/{FAILED}.json", lambda data: data[:100])(run_dir)
    lose_endings(run_dir, ONE, "toy_00002")
    if player.TOKENS:
        gone("traces/toy_00004.parquet")(run_dir)
        changed(f"traces/{ONE}.parquet", flip)(run_dir)
    return whole


def contents(run_dir: Path) -> dict[str, bytes]:
    return files(run_dir / "transcripts") | (files(run_dir / "traces") if player.TOKENS else {})


def test_what_is_damaged_or_gone_is_written_again_and_the_index_stays(run_dir: Path) -> None:
    whole = leave_damaged(run_dir)
    index = (run_dir / "toy_index.jsonl").read_bytes()

    with open_thorough(run_dir) as run:
        repairs = run.repairs
        assert run.counts == (REPAIRED, REPAIRED - 1, 1)

    assert repairs.set_aside == ["toy_00000", FAILED]
    assert repairs.restored == ["toy_00000", "toy_00001", FAILED]
    assert (repairs.adopted, repairs.reopened) == (["toy_00002"], [])
    assert contents(run_dir) == whole
    assert (run_dir / "toy_index.jsonl").read_bytes() == index
    assert (run_dir / "damaged/toy_00000.json").read_bytes() != whole["toy_00000.json"]
    assert player.verified(run_dir).findings == ()


def test_transcripts_whose_directory_is_gone_are_written_again(run_dir: Path) -> None:
    whole = contents(player.played(run_dir, REPAIRED))
    shutil.rmtree(run_dir / "transcripts")

    open_thorough(run_dir).close()

    assert contents(run_dir) == whole


@pytest.mark.ci
def test_repair_broken_off_at_any_call_is_ended_by_the_next_one(
    tmp_path: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "TOKENS", 40)
    whole, damaged = leave_damaged(tmp_path / "damaged"), tmp_path / "damaged"
    reference = copied(damaged, tmp_path / "reference")
    for fail_at in failing_calls(system, lambda: open_thorough(reference, disk).close()):
        run_dir = copied(damaged, tmp_path / str(fail_at))
        with pytest.raises(StoreError), open_thorough(run_dir, disk):
            pass
        open_thorough(run_dir).close()
        assert contents(run_dir) == whole, fail_at
        assert player.verified(run_dir).findings == (), fail_at
        assert files(run_dir / "damaged").keys() == {"toy_00000.json", f"{FAILED}.json"}


def test_conversation_that_was_retried_is_not_restored_as_it_failed(run_dir: Path) -> None:
    """Its old row may stand in the index when a retry is killed; the attempt after it is what counts."""
    leave_damaged(run_dir)
    with open_thorough(run_dir):
        index = (run_dir / "toy_index.jsonl").read_bytes()
    player.open_toy(run_dir, REPAIRED, is_retried=FAILED.__eq__).close()
    (run_dir / "toy_index.jsonl").write_bytes(index)

    with open_thorough(run_dir) as run:
        assert run.repairs.restored == []
        assert [task.task_id for task, _ in run.unfinished()] == [FAILED]
    assert read_run(run_dir).under_retry() == {FAILED}
