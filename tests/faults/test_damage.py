"""Bytes that turn into others behind everybody's back: seen, named, and paid for by one task at the most."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.store import Disk, writer
from tests.faults.crashfs import CrashDisk
from tests.faults.test_crashes import is_beginning_of_play, transcripts_in
from tests.store import player

CONVERSATIONS = 3
STEP_BYTES = 37


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrashDisk:
    """A run of which two conversations have ended and one is half done."""
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    disk = CrashDisk(tmp_path)
    player.played(tmp_path / "run", CONVERSATIONS, disk=Disk(disk), turns=2 * player.TURNS + 2)
    return disk


@pytest.mark.ci
def test_altered_byte_of_the_journal_costs_one_task_and_no_result(tmp_path: Path, played: CrashDisk) -> None:
    """A lost note of an ending is made up for by the transcript itself: it is adopted and not played again."""
    segment, run_dir = tmp_path / "run/journal/000001.jsonl", tmp_path / "run"
    whole = played.files()["run/journal/000001.jsonl"]
    transcripts = transcripts_in(played.files())
    for position in range(0, len(whole), STEP_BYTES):
        disk = played.crash("keep")
        disk.overwrite(segment, whole[:position] + bytes([whole[position] ^ 0x02]) + whole[position + 1 :])
        with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk)) as run:
            assert run.counts.done == 2
            ((task, replies),) = run.unfinished()
            assert is_beginning_of_play(task, replies)

        assert transcripts_in(disk.files()) == transcripts
        report = player.verified(run_dir, disk=Disk(disk))
        assert (report.lost, report.duplicated, report.unexpected, report.mismatched) == (0, 0, 0, 0)
        assert report.damaged == 1


@pytest.mark.parametrize("has_index", [True, False])
def test_orphan_with_another_digest_than_its_row_is_set_aside(
    tmp_path: Path, played: CrashDisk, has_index: bool
) -> None:
    """Its note is lost and one letter of it is another: the index knows better, where there is one."""
    run_dir = tmp_path / "run"
    files = played.files()
    journal = b"".join(
        line for line in files["run/journal/000001.jsonl"].splitlines(keepends=True) if b'"kind":"done"' not in line
    )
    played.overwrite(run_dir / "journal/000001.jsonl", journal)
    altered = files["run/transcripts/toy_00001.json"].replace(b'"detail": "says"', b'"detail": "sayz"', 1)
    played.overwrite(run_dir / "transcripts/toy_00001.json", altered)
    if not has_index:
        played.unlink(run_dir / "toy_index.jsonl")

    with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(played)) as run:
        assert run.counts.done == (1 if has_index else 2)

    assert ("run/damaged/toy_00001.json" in played.files()) is has_index


def test_altered_transcript_is_named(tmp_path: Path, played: CrashDisk) -> None:
    data = played.files()["run/transcripts/toy_00000.json"]
    played.overwrite(tmp_path / "run/transcripts/toy_00000.json", data.replace(b"finished", b"Finished", 1))

    report = player.verified(tmp_path / "run", disk=Disk(played))

    (finding,) = report.findings
    assert finding.text.startswith("toy_00000: its transcript")
