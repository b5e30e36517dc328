"""A run directory in which nothing was played may become another experiment's; one reply, and it may not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mac_runner.clock import Clock
from mac_runner.errors import IdentityError, RunLockedError
from mac_runner.plan import Shard
from mac_runner.store import Run, open_run, verify_run
from mac_runner.types import JsonObject
from tests.store import player
from tests.store.conftest import tree


def open_named(run_dir: Path, clock: Clock, name: str, shard: Shard | None = None) -> Run:
    config: JsonObject = {"experiment_metadata": {"experiment_name": name}, "seed": len(name)}
    return open_run(run_dir, experiment_name=name, resolved=config, tasks=player.plan(2), clock=clock, shard=shard)


def planned(run_dir: Path) -> list[str]:
    return [task["task_id"] for task in json.loads((run_dir / "task_manifest.json").read_bytes())["tasks"]]


def test_unplayed_directory_takes_on_a_corrected_experiment(run_dir: Path) -> None:
    with player.open_toy(run_dir, 5) as run:
        run.checkpoint({"models": {}})
        run.write_summary({"conversations": 0})
    corrected = player.resolved(seed=2)
    found = player.surveyed(run_dir, 3, corrected)
    assert (found.changed_settings, found.is_complete) == (("seed: 1 there, 2 now",), False)

    with player.open_toy(run_dir, 3, config=corrected) as run:
        player.play(run)

    assert yaml.safe_load((run_dir / "experiment.yaml").read_bytes()) == corrected
    assert planned(run_dir) == ["toy_00000", "toy_00001", "toy_00002"]
    assert not (run_dir / "summary.json").exists()
    assert b'"changes":["seed: 1 there, 2 now"]' in (run_dir / "events.jsonl").read_bytes()
    assert verify_run(run_dir, rebuild=player.rebuild).ok
    with pytest.raises(IdentityError, match="seed: 2 there, 1 now"):
        player.open_toy(run_dir, 5)


def test_session_that_was_killed_before_its_first_reply_binds_nobody(run_dir: Path) -> None:
    player.open_toy(run_dir, 1).close()
    segment = run_dir / "journal/000001.jsonl"
    segment.write_bytes(segment.read_bytes()[:-9])

    player.open_toy(run_dir, 1, config=player.resolved(seed=2)).close()


def test_unplayed_directory_leaves_nothing_under_the_name_of_before(run_dir: Path, clock: Clock) -> None:
    open_named(run_dir, clock, "mistyped").close()
    open_named(run_dir, clock, "right").close()

    assert [path.name for path in run_dir.glob("*_index.jsonl")] == ["right_index.jsonl"]


def test_unplayed_directory_of_a_shard_stays_that_shards(run_dir: Path, clock: Clock) -> None:
    open_named(run_dir, clock, "mistyped", Shard(1, 2)).close()

    with pytest.raises(IdentityError, match="holds shard 1/2"):
        open_named(run_dir, clock, "right", Shard(2, 2))
    open_named(run_dir, clock, "right", Shard(1, 2)).close()


def test_unplayed_directory_is_left_to_whoever_is_at_work_in_it(run_dir: Path) -> None:
    lock = {".lock": (0, b"")}  # Some versions of filelock empty the file, which is empty, whenever they try it.

    with player.open_toy(run_dir, 1):
        before = tree(run_dir)
        with pytest.raises(RunLockedError):
            player.open_toy(run_dir, 1, config=player.resolved(seed=2))
        assert tree(run_dir) | lock == before | lock


def reply(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1) as run:
        player.play(run, turns=1)


def death(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1) as run:
        run.death(next(run.unfinished())[0], "0/Ann/0/0")


def damage(run_dir: Path) -> None:
    reply(run_dir)
    segment = run_dir / "journal/000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"kind":"reply"', b'"kind":"repay"'))


def ending(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1) as run:
        player.play(run)
    for segment in (run_dir / "journal").iterdir():
        segment.write_bytes(b"")


def transcript(run_dir: Path) -> None:
    ending(run_dir)
    (run_dir / "toy_index.jsonl").write_bytes(b"")


def row(run_dir: Path) -> None:
    ending(run_dir)
    (run_dir / "transcripts/toy_00000.json").unlink()


def stranger(run_dir: Path) -> None:
    (run_dir / "notes.txt").write_text("mine")


@pytest.mark.parametrize("trace", [reply, death, damage, ending, transcript, row, stranger])
def test_directory_in_which_anything_stands_is_refused_to_another_experiment(
    run_dir: Path, trace: Callable[[Path], None]
) -> None:
    player.open_toy(run_dir, 1).close()
    trace(run_dir)
    corrected = player.resolved(seed=2)
    files = {name: held for name, held in tree(run_dir).items() if not name.startswith(".")}

    with pytest.raises(IdentityError, match="seed: 1 there, 2 now"):
        player.surveyed(run_dir, 1, corrected)
    with pytest.raises(IdentityError, match="seed: 1 there, 2 now"):
        player.open_toy(run_dir, 1, config=corrected)

    assert {name: held for name, held in tree(run_dir).items() if not name.startswith(".")} == files
