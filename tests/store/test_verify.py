from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.store import verify_run
from mac_runner.types import JsonObject


@pytest.fixture
def played(player: ModuleType, run_dir: Path) -> Path:
    with player.open_toy(run_dir, 4) as run:
        player.play(run)
    return run_dir


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def test_intact_run_has_no_findings(player: ModuleType, played: Path) -> None:
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
    player: ModuleType, played: Path, name: str, change: Callable[[bytes], bytes] | None, count: str
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


def test_verify_plays_every_transcript_again(player: ModuleType, played: Path) -> None:
    def other(transcript: JsonObject) -> JsonObject:
        return {**player.rebuild(transcript), "outcome": {"last": 1}}

    report = verify_run(played, rebuild=other)

    assert report.mismatched == 4
    assert report.findings[0].text == "toy_00000: played again it comes out different in outcome"


def test_verify_takes_a_rebuild_that_fails_for_a_mismatch(played: Path) -> None:
    def broken(transcript: JsonObject) -> JsonObject:
        raise KeyError("Ann")

    assert verify_run(played, rebuild=broken).mismatched == 4


def test_verify_ignores_time_and_nothing_else(player: ModuleType, played: Path) -> None:
    def late(transcript: JsonObject) -> JsonObject:
        return {**player.rebuild(transcript), "timing": {"wall_s": 99.0}}

    assert verify_run(played, rebuild=late).ok
    assert not verify_run(played, rebuild=lambda found: {**json.loads(json.dumps(late(found))), "extra": 1}).ok


def test_verify_of_no_run_directory_says_so(player: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no run directory"):
        verify_run(tmp_path, rebuild=player.rebuild)
