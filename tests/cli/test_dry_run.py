"""`--dry-run` says what is left, and touches nothing."""

from __future__ import annotations

import signal

from tests.cli.lab import AtOnce, Lab, ended, experiment, scripted, wait_for


def test_dry_run_of_a_fresh_experiment_touches_nothing(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())

    process = at_once(file, "--dry-run", "--limit", "1")

    assert "small, profile embedded, seed 11" in process.stdout
    assert "1 asked for: 0 finished, 0 failed, 0 half done (0 replies recorded), 1 not begun" in process.stdout
    assert "runs/small" in process.stdout
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


def test_dry_run_of_a_finished_run_touches_nothing(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    process = at_once("small.yaml", "--dry-run")

    assert "2 asked for: 2 finished, 0 failed, 0 half done (0 replies recorded), 0 not begun" in process.stdout
    assert finished.run_dir().hashes() == before


def test_dry_run_names_what_would_be_extended_or_changed(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment(conversations=3, models={"m": scripted(capacity=3)}))
    before = finished.run_dir().hashes()

    process = at_once("small.yaml", "--dry-run")

    assert "3 asked for: 2 finished" in process.stdout
    assert "1 not begun" in process.stdout
    assert "model_definitions.m.scripted_config.capacity: 8 there, 3 now" in process.stdout
    assert finished.run_dir().hashes() == before


def test_dry_run_of_another_identity_is_refused_like_the_run(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    process = at_once("small.yaml", "--dry-run", "--seed", "12")

    assert process.returncode == 2
    assert "seed: 11 there, 12 now" in process.stderr
    assert finished.run_dir().hashes() == before


def test_dry_run_counts_the_replies_a_killed_run_recorded(lab: Lab) -> None:
    file = lab.write(experiment(models={"m": scripted(latency_ms=5)}))
    running = lab.start(file, "--no-live")
    run = lab.run_dir()
    wait_for(lambda: len(run.events("EVENT_INFER_DONE")) > 20, "twenty replies")
    running.send_signal(signal.SIGKILL)
    ended(running)
    before = run.hashes()

    process = lab.done(file, "--dry-run")

    assert "2 asked for: 0 finished, 0 failed, 2 half done" in process.stdout
    recorded = int(process.stdout.split("half done (")[1].split(" replies")[0])
    assert recorded > 20
    assert run.hashes() == before
