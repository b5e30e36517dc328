"""Run directories as released versions wrote them are read, checked and gone on with, for ever.

A format that changes gets a number and a directory of its own (`tests/golden/record.py`); those that are there stay.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.clock import SystemClock
from mac_runner.runs.testing import summary_of
from mac_runner.store import merge_runs, read_run, read_standing, verify_run
from mac_runner.store.testing import decode_transcript, in_format_of
from tests.kit import copied
from tests.store import player
from tests.store.conftest import tree

RELEASED = Path(__file__).parents[1] / "golden" / "runs"
VERSIONS = sorted(path.name for path in RELEASED.iterdir())


@pytest.fixture(params=VERSIONS)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The run directories of one format, to be changed at will."""
    return copied(RELEASED / str(request.param), tmp_path / str(request.param))


def test_there_is_a_format() -> None:
    assert VERSIONS[0] == "v1"


def test_finished_run_is_read_and_verified(released: Path) -> None:
    run_dir = released / "finished"
    contents = read_run(run_dir)

    assert contents.counts == (3, 3, 0)
    assert [row["index"] for row in contents.rows()] == [0, 1, 2]
    assert contents.transcript("toy_00001")["status"] == "finished"
    assert contents.accounting["sessions"] == 3
    assert contents.accounting["models"]["m"]["requests"] == 36  # type: ignore[index, call-overload]
    assert verify_run(run_dir, rebuild=player.rebuild, summarise=summary_of).findings == ()
    assert read_standing(run_dir).finished == 3


def test_finished_run_has_nothing_left_and_is_left_as_it_is(released: Path) -> None:
    run_dir = released / "finished"
    before = tree(run_dir)

    found = player.surveyed(run_dir, 3)

    assert found.is_complete
    assert tree(run_dir) == before


def test_finished_run_is_extended(released: Path) -> None:
    run_dir = released / "finished"
    before = {path.name: path.read_bytes() for path in (run_dir / "transcripts").iterdir()}

    with player.open_toy(run_dir, 4) as run:
        assert player.play(run) == player.TURNS

    after = {path.name: path.read_bytes() for path in (run_dir / "transcripts").iterdir()}
    assert after.items() > before.items()
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


def test_killed_run_goes_on_from_its_recorded_replies(released: Path) -> None:
    run_dir = released / "killed"
    assert read_run(run_dir).counts == (5, 2, 0)

    with player.open_toy(run_dir, 5) as run:
        assert player.play(run) == 5 * player.TURNS - 10

    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()
    assert not list(run_dir.rglob(".tmp-*"))
    for path in (released / "finished/transcripts").iterdir():
        played = (run_dir / "transcripts" / path.name).read_bytes()
        recorded = decode_transcript(path.read_bytes())
        assert in_format_of(decode_transcript(played), recorded) == recorded


def test_summary_of_a_released_run_is_held_against_its_journal(released: Path) -> None:
    path = released / "finished/summary.json"
    path.write_bytes(path.read_bytes().replace(b'"finished": 3', b'"finished": 2', 1))

    (finding,) = verify_run(path.parent, rebuild=player.rebuild, summarise=summary_of).findings

    assert finding.text.startswith("summary.json: ")


def test_released_runs_are_merged_with_todays(released: Path, tmp_path: Path) -> None:
    with player.open_toy(tmp_path / "today", 0):
        pass

    merge_runs(
        tmp_path / "whole",
        [released / "finished", tmp_path / "today"],
        summarise=lambda _: {},
        plan=lambda _: player.plan(3),
        clock=SystemClock(),
    )

    assert verify_run(tmp_path / "whole", rebuild=player.rebuild).acknowledged == 3
