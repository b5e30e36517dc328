from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from mac_runner.store import read_run
from mac_runner.store.testing import stretches as stretches_of
from mac_runner.store.testing import usage_of
from mac_runner.types import JsonObject
from tests.store import player
from tests.store.conftest import StillClock


def test_each_part_of_an_extended_run_tells_when_it_came(run_dir: Path, clock: StillClock) -> None:
    for n in (2, 2, 5):
        with player.open_toy(run_dir, n, clock=clock) as run:
            player.play(run)
        clock.now_s += 60

    assert read_run(run_dir).accounting["parts"] == [
        {
            "session": 1,
            "started_at": "2025-01-01T00:00:00.000Z",
            "finished": 2,
            "failed": 0,
            "indexes": [[0, 1, 1]],
        },
        {
            "session": 3,
            "started_at": "2025-01-01T00:02:00.000Z",
            "finished": 3,
            "failed": 0,
            "indexes": [[2, 4, 1]],
        },
    ]


def test_what_a_session_without_a_checkpoint_ended_is_untimed(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 2, clock=clock) as run:
        player.play(run)
    segment = run_dir / "journal/000001.jsonl"
    segment.write_bytes(b"".join(line for line in segment.read_bytes().splitlines(True) if b"checkpoint" not in line))
    with player.open_toy(run_dir, 5, clock=clock) as run:
        player.play(run)
        clock.now_s += 10

    told = read_run(run_dir).accounting
    assert told["wall_s"] == 10.0
    assert told["untimed"] == {"conversations": 2, "turns": 2 * player.TURNS}


def test_time_before_the_engines_were_up_is_not_played(run_dir: Path, clock: StillClock) -> None:
    for _ in range(2):
        with player.open_toy(run_dir, 1, clock=clock) as run:
            clock.now_s += 100
            run.checkpoint({"played_s": 0.0})
            clock.now_s += 7
            run.checkpoint({"played_s": 7.0})
            run.write_summary({})

    told = read_run(run_dir).accounting
    assert (told["wall_s"], told["played_s"]) == (214.0, 14.0)


def test_a_session_whose_engines_never_came_up_has_played_nothing(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 1, clock=clock):
        clock.now_s += 100

    told = read_run(run_dir).accounting
    assert (told["wall_s"], told["played_s"]) == (100.0, 0.0)


def test_a_checkpoint_that_does_not_tell_its_play_counts_whole() -> None:
    models: JsonObject = {"m": {"capacity": 64, "slots": 2, "available_slot_s": 8.0}, "n": {"available_slot_s": 1.0}}
    usage = usage_of({"usage": {"wall_s": 5.0, "models": models}})

    assert usage["played_s"] == 5.0
    assert usage["models"] == {
        "m": {"capacity": 64, "slots": 2, "available_slot_s": 8.0, "played_s": 4.0},
        "n": {"available_slot_s": 1.0},
    }


def test_failed_conversations_are_told_apart(run_dir: Path) -> None:
    with player.open_toy(run_dir, 3) as run:
        for task, _ in run.unfinished():
            run.publish(task, player.transcript(task, [], "no luck" if task.index == 1 else None))

    parts = read_run(run_dir).accounting["parts"]
    assert isinstance(parts, list)
    assert [(part["finished"], part["failed"]) for part in parts if isinstance(part, dict)] == [(2, 1)]


@pytest.mark.parametrize(
    ("indexes", "stretches"),
    [
        ([], []),
        ([3], [[3, 3, 1]]),
        ([0, 1, 2, 7, 11, 15], [[0, 2, 1], [7, 15, 4]]),
        ([0, 5], [[0, 0, 1], [5, 5, 1]]),
        ([0, 5, 6, 7], [[0, 0, 1], [5, 7, 1]]),
        ([1, 4, 7, 10], [[1, 10, 3]]),
    ],
)
def test_indexes_are_told_in_short(indexes: list[int], stretches: list[list[int]]) -> None:
    assert list(stretches_of(array("q", indexes))) == stretches
