"""How a run stands, seen from outside: at work, stopped, complete, tried again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import open_run, read_standing
from tests.store import player
from tests.store.conftest import tree


def test_run_at_work_is_told_by_its_counts_and_its_owner(run_dir: Path) -> None:
    with player.open_toy(run_dir, 10) as run:
        player.play(run, turns=2 * player.TURNS + 1)
        run.checkpoint({"models": {"m": {"requests": 9, "capacity": 4}}})
        run.contents()
        standing = read_standing(run_dir)

    assert (standing.planned, standing.finished, standing.failed, standing.half_done) == (10, 2, 0, 1)
    assert standing.owner is not None
    assert standing.owner.pid == os.getpid()
    assert standing.is_owner_alive is True
    assert standing.last_sign_of_life == standing.owner.started_at
    assert standing.latest is not None
    assert (standing.latest.ended, standing.latest.turns_ended) == (2, 2 * player.TURNS)
    assert standing.usage["models"] == {"m": {"requests": 9, "capacity": 4}}


def test_run_that_was_left_has_no_owner(run_dir: Path) -> None:
    with player.open_toy(run_dir, 3) as run:
        player.play(run)

    standing = read_standing(run_dir)

    assert (standing.owner, standing.is_owner_alive, standing.last_sign_of_life) == (None, None, None)
    assert standing.ended == standing.planned == 3


def test_owner_that_was_killed_is_told_as_gone(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1):
        note = (run_dir / ".owner.json").read_bytes()
    (run_dir / ".owner.json").write_text(json.dumps({**json.loads(note), "process_start": "1"}))

    standing = read_standing(run_dir)

    assert standing.owner is not None
    assert standing.is_owner_alive is False


def test_failures_and_what_was_tried_again_are_told_as_they_stand(run_dir: Path) -> None:
    with player.open_toy(run_dir, 3) as run:
        for task, _ in run.unfinished():
            run.publish(task, player.transcript(task, [], "no luck"))
    again = open_run(
        run_dir,
        experiment_name=player.NAME,
        resolved=player.resolved(),
        tasks=player.plan(1),
        clock=SystemClock(),
        is_retried=lambda task_id: task_id == "toy_00000",
    )
    with again as run:
        during = read_standing(run_dir)
        player.play(run)
    after = read_standing(run_dir)

    assert (during.finished, during.failed, during.sessions) == (0, 2, 2)
    assert (after.finished, after.failed) == (1, 2)
    assert [row["task_id"] for row in after.failures] == ["toy_00001", "toy_00002"]


def test_looking_changes_nothing_and_takes_no_lock(run_dir: Path) -> None:
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
        run.contents()
        before = tree(run_dir)
        read_standing(run_dir)
        assert tree(run_dir) == before


def test_looking_reads_no_transcript(run_dir: Path) -> None:
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
    for path in (run_dir / "transcripts").iterdir():
        path.write_bytes(b"not looked at")

    assert read_standing(run_dir).finished == 2


def test_shard_is_told(run_dir: Path) -> None:
    open_run(
        run_dir,
        experiment_name=player.NAME,
        resolved=player.resolved(),
        tasks=player.plan(1),
        clock=SystemClock(),
        shard=Shard(1, 4),
    ).close()

    assert read_standing(run_dir).shard == Shard(1, 4)


def test_what_is_no_run_is_refused(run_dir: Path) -> None:
    with pytest.raises(RunDirectoryError, match="run directory"):
        read_standing(run_dir)
