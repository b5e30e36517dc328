from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.errors import RunDirectoryError
from mac_runner.runs.testing import summary_of
from mac_runner.store import verify_run
from mac_runner.store.testing import encode_frame
from mac_runner.types import JsonObject
from tests.store import player


@pytest.fixture
def played(run_dir: Path) -> Path:
    with player.open_toy(run_dir, 4) as run:
        player.play(run)
    return run_dir


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def test_intact_run_has_no_findings(played: Path) -> None:
    report = verify_run(played, rebuild=player.rebuild)

    assert report.ok
    assert (report.attempted, report.acknowledged) == (4, 4)


@pytest.mark.parametrize(
    ("name", "change", "count"),
    [
        ("transcripts/toy_00001.json", None, "lost"),
        ("transcripts/toy_00001.json", lambda data: data.replace(b"toy", b"boy"), "damaged"),
        ("transcripts/toy_00001.json", lambda data: data + b"\n", "damaged"),
        ("transcripts/stranger.json", lambda data: b"{}", "unexpected"),
        ("toy_index.jsonl", lambda data: data + data.splitlines(keepends=True)[0], "duplicated"),
        ("toy_index.jsonl", lambda data: b"".join(data.splitlines(keepends=True)[1:]), "lost"),
        ("toy_index.jsonl", lambda data: data.replace(b'"turns":4', b'"turns":5', 1), "mismatched"),
        ("toy_index.jsonl", lambda data: data + b"{\n", "damaged"),
        ("toy_index.jsonl", lambda data: data + b'{"task_id": "x"}\n', "unexpected"),
        ("journal/000001.jsonl", lambda data: data.replace(b'"turn":"1/', b'"turn":"2/', 1), "damaged"),
    ],
)
def test_verify_finds_what_is_wrong(
    played: Path, name: str, change: Callable[[bytes], bytes] | None, count: str
) -> None:
    path = played / name
    if change is None:
        path.unlink()
    else:
        path.touch()
        edit(path, change)
    report = verify_run(played, rebuild=player.rebuild)

    assert not report.ok
    assert len(report.findings) == getattr(report, count) == 1


def test_verify_plays_every_transcript_again(played: Path, snapshot: SnapshotAssertion) -> None:
    def other(transcript: JsonObject) -> JsonObject:
        return {**player.rebuild(transcript), "outcome": {"last": 1}}

    report = verify_run(played, rebuild=other)

    assert report.mismatched == 4
    assert report.findings[0].text == snapshot


def test_verify_takes_a_rebuild_that_fails_for_a_mismatch(played: Path) -> None:
    def broken(transcript: JsonObject) -> JsonObject:
        raise KeyError("Ann")

    assert verify_run(played, rebuild=broken).mismatched == 4


def test_verify_ignores_time_and_nothing_else(played: Path) -> None:
    def late(transcript: JsonObject) -> JsonObject:
        return {**player.rebuild(transcript), "timing": {"wall_s": 99.0}}

    assert verify_run(played, rebuild=late).ok
    assert not verify_run(played, rebuild=lambda found: {**json.loads(json.dumps(late(found))), "extra": 1}).ok


def test_row_that_is_not_that_of_its_transcript_is_found_though_its_frame_is_intact(
    played: Path, snapshot: SnapshotAssertion
) -> None:
    segment = played / "journal/000001.jsonl"
    lines = [json.loads(line[9:]) for line in segment.read_bytes().splitlines()]
    for record in lines:
        if record["kind"] == "done" and record["id"] == "toy_00002":
            record["row"]["counts"]["turns"] = 3
    segment.write_bytes(b"".join(map(encode_frame, lines)))

    assert [finding.text for finding in verify_run(played, rebuild=player.rebuild).findings] == snapshot


def test_temporary_files_are_no_results_and_no_damage(played: Path, snapshot: SnapshotAssertion) -> None:
    (played / "attempts").mkdir()
    for place in (".", "journal", "transcripts", "attempts"):
        (played / place / ".tmp-0badcafe-4242-000000000000").touch()

    report = verify_run(played, rebuild=player.rebuild)

    assert report.findings == ()
    assert report.notes == snapshot
    with player.open_toy(played, 4):
        pass
    assert not list(played.rglob(".tmp-*"))


def test_stranger_among_the_transcripts_is_told_from_a_transcript(played: Path, snapshot: SnapshotAssertion) -> None:
    for name in ("notes.txt", "toy_00009.json"):
        (played / "transcripts" / name).touch()

    assert [finding.text for finding in verify_run(played, rebuild=player.rebuild).findings] == snapshot


def test_run_that_is_played_while_it_is_verified_is_not_damaged(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    """Between any two looks of the checker conversations begin, end, are acknowledged and get their rows."""
    with player.open_toy(run_dir, 3) as run:
        player.play(run)
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
        # As a process that is slow leaves them for a moment: published, and not acknowledged; a row half written.
        (run_dir / "transcripts/toy_00008.json").touch()
        with (run_dir / "toy_index.jsonl").open("ab") as index:
            index.write(b'{"task_id":"toy_0')
        half_way = verify_run(run_dir, rebuild=player.rebuild)
        (run_dir / "transcripts/toy_00000.json").unlink()
        lost = verify_run(run_dir, rebuild=player.rebuild)

    for found in (report, half_way):
        assert found.findings == ()
        assert f"under way (pid {os.getpid()} on " in found.notes[-1]
        assert "has ended" in found.notes[-1]
    assert [finding.text for finding in lost.findings] == snapshot
    assert not any("under way" in note for note in verify_run(run_dir, rebuild=player.rebuild).notes)


def test_run_that_begins_and_ends_while_it_is_verified_is_not_damaged(played: Path) -> None:
    is_new = True

    def meanwhile(transcript: JsonObject) -> JsonObject:
        nonlocal is_new
        if is_new:
            is_new = False
            with player.open_toy(played, 7) as run:
                player.play(run)
        rebuilt: JsonObject = player.rebuild(transcript)
        return rebuilt

    report = verify_run(played, rebuild=meanwhile)

    assert report.findings == ()
    assert "ended meanwhile" in report.notes[-1]


def test_verify_of_no_run_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="run directory"):
        verify_run(tmp_path, rebuild=player.rebuild)


def test_summary_that_is_written_before_the_run_closes_is_of_the_times_that_stand(run_dir: Path) -> None:
    """However long the closing takes: it finds nothing new to account for."""
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
        run.checkpoint({"models": {}})
        run.write_summary(summary_of(run.contents()))
        run.contents()

    assert verify_run(run_dir, rebuild=player.rebuild, summarise=summary_of).findings == ()
