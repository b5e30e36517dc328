"""A part of an experiment: in a directory of its own, and for ever that part."""

from __future__ import annotations

import json

from tests.cli.lab import AtOnce, Lab, RunDir, experiment


def test_shard_runs_its_part_in_a_directory_of_its_own(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=3))

    assert at_once(file, "--shard", "2/2").returncode == 0

    run = RunDir(path=lab.path / "runs" / "small.shard-2-of-2")
    assert [row["task_id"] for row in run.index] == ["small-000001"]
    assert run.statuses == {"finished": 1}
    assert json.loads((run.path / "shard.json").read_text()) == {"shard": 2, "of": 2}
    lab.verified(run.path)


def test_resume_with_another_shard_is_refused_naming_both(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())
    at_once(file, "--shard", "1/2", "--out", "here")
    before = RunDir(path=lab.path / "here").hashes()

    other = at_once(file, "--shard", "2/2", "--out", "here")
    whole = at_once(file, "--out", "here", "--dry-run")

    assert (other.returncode, whole.returncode) == (2, 2)
    assert "shard 2/2" in other.stderr
    assert "the whole experiment" in whole.stderr
    assert RunDir(path=lab.path / "here").hashes() == before


def test_whole_run_does_not_become_a_shard(finished: Lab, at_once: AtOnce) -> None:
    refused = at_once("small.yaml", "--shard", "1/2", "--out", "runs/small")

    assert refused.returncode == 2
    assert "and shard 1/2" in refused.stderr


def test_limit_bounds_the_experiment_and_not_each_shard(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=8))

    process = at_once(file, "--shard", "2/2", "--limit", "3", "--dry-run")

    assert "1 asked for" in process.stdout
    assert "-2-of-2, shard 2/2" in process.stdout


def test_shard_with_nothing_in_it_is_finished_at_once(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=1))

    assert at_once(file, "--shard", "2/2").returncode == 0
    assert at_once(file, "--shard", "2/2").returncode == 0

    lab.verified(lab.path / "runs" / "small.shard-2-of-2")


def test_shard_zero_is_refused_with_the_first_shard(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(lab.write(experiment()), "--shard", "0/4")

    assert process.returncode == 2
    assert "first is 1/4" in process.stderr
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]
