"""The same command again goes on; another experiment, or another process, may not."""

from __future__ import annotations

import signal
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.store import read_run
from mac_runner.types import JsonValue
from tests.cli.lab import AtOnce, Lab, experiment, refusals, render_other_prompts, scripted
from tests.patience import ended


def test_identity_change_is_refused_naming_fields_and_both_values(finished: Lab, at_once: AtOnce) -> None:
    changed = experiment(seed=12, lobby="classic-8", models={"m": scripted("random")})
    finished.write(changed)
    before = finished.run_dir().hashes()

    process = at_once("small.yaml")

    assert process.returncode == 2
    assert "seed: 11 there, 12 now" in process.stderr
    assert '"classic-7" there, "classic-8"' in process.stderr
    assert '"heuristic" there, "random"' in process.stderr
    assert "--out" in process.stderr
    assert finished.run_dir().hashes() == before


@pytest.mark.ci
def test_runtime_change_goes_on_with_what_is_there(finished: Lab, at_once: AtOnce) -> None:
    first = finished.run_dir().transcripts
    finished.write(experiment(conversations=3, models={"m": scripted(capacity=2, latency_ms=0.1)}))

    assert at_once("small.yaml").returncode == 0

    run = finished.run_dir()
    assert run.statuses == {"finished": 3}
    assert {name: run.transcripts[name] for name in first} == first
    assert len(run.events("EVENT_SETTINGS_CHANGED")) == 1
    assert "capacity: 2" in (run.path / "experiment.yaml").read_text()
    finished.verified(run.path)


@pytest.mark.ci
def test_version_that_renders_other_prompts_is_refused_and_the_first_one_goes_on(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    file = lab.write(experiment())
    first = lab.start_held(1, file)
    first.send_signal(signal.SIGTERM)
    assert ended(first)[0] == 3

    with monkeypatch.context() as other_version:
        render_other_prompts(other_version)
        told = refusals(at_once, [file])

    assert told == snapshot
    assert lab.run_dir().transcripts == {}
    assert at_once(file).returncode == 0
    lab.verified(lab.run_dir().path)


@pytest.mark.ci
def test_second_process_leaves_at_once_naming_the_first(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())
    first = lab.start_held(1, file)

    second = at_once(file)

    assert first.poll() is None
    assert second.returncode == 5
    assert f"pid {first.pid} " in second.stderr
    assert "--out" in second.stderr
    first.send_signal(signal.SIGTERM)
    assert ended(first)[0] == 3


@pytest.mark.ci
def test_two_processes_let_in_by_a_broken_lock_end_like_one(lab: Lab) -> None:
    file = lab.write(experiment("twice", models={"m": scripted(latency_ms=5)}))
    code = "import filelock as f; f.FileLock.acquire = lambda lock: None; from mac_runner.cli import main; main()"
    both = [lab.start(file, program=(sys.executable, "-c", code)) for _ in range(2)]

    endings = [ended(process) for process in both]

    assert [code for code, _, _ in endings] == [0, 0], endings
    run = lab.run_dir("twice")
    assert run.statuses == {"finished": 2}
    assert [row["task_id"] for row in run.index] == ["twice-000000", "twice-000001"]
    repeated = read_run(run.path).accounting.get("repeated", {"conversations": 0})
    told = run.events("EVENT_WORK_REPEATED")
    assert isinstance(repeated, dict)
    assert repeated["conversations"] == len(told)
    # Each wrote a summary of what it knew of the other; which one came last is chance.
    (run.path / "summary.json").unlink()
    lab.play(file, "--quiet")
    lab.verified(run.path)


@pytest.mark.ci
def test_lock_of_a_killed_process_holds_nobody_up(lab: Lab) -> None:
    file = lab.write(experiment())
    first = lab.start_held(1, file)
    first.send_signal(signal.SIGKILL)
    ended(first)

    lab.play(file)

    assert lab.run_dir().statuses == {"finished": 2}
    lab.verified(lab.run_dir().path)


def test_resuming_twice_is_resuming_once(finished: Lab, at_once: AtOnce) -> None:
    """What a resume puts right it puts right for good: the next one asks for nothing and changes no byte."""
    run = finished.run_dir()
    (run.path / "small_index.jsonl").unlink()
    (run.path / "transcripts" / "small-000001.json").unlink()
    assert at_once("small.yaml").returncode == 0
    once, asked = run.hashes(), len(run.events("EVENT_INFER_START"))

    assert at_once("small.yaml").returncode == 0

    assert run.hashes() == once
    assert len(run.events("EVENT_INFER_START")) == asked
    finished.verified(run.path)


def test_wall_time_and_requests_add_up_over_sessions(finished: Lab, at_once: AtOnce) -> None:
    first = finished.run_dir().summary

    assert at_once("small.yaml", "--set", "conversation_config.conversations=3").returncode == 0

    second = finished.run_dir().summary
    assert (first["sessions"], second["sessions"]) == (1, 2)
    assert _number(second["wall_s"]) > _number(first["wall_s"]) > 0
    assert _number(second["turns"]) > _number(first["turns"])


def test_extended_run_plays_what_is_new_and_says_which_part_came_when(finished: Lab, at_once: AtOnce) -> None:
    run = finished.run_dir()
    first = {row["task_id"]: row for row in run.index}

    process = at_once("small.yaml", "--set", "conversation_config.conversations=4")

    assert process.returncode == 0
    assert {row["task_id"]: row for row in run.index} | first == {row["task_id"]: row for row in run.index}
    parts = run.summary["parts"]
    assert isinstance(parts, list)
    assert [part["indexes"] for part in parts if isinstance(part, dict)] == ["0-1", "2-3"]
    assert "\nparts\n" in process.stdout
    finished.verified(run.path)


@pytest.mark.parametrize("name", ["small_index.jsonl", "summary.json", "task_manifest.json"])
def test_derived_file_that_was_lost_is_made_again(finished: Lab, at_once: AtOnce, name: str) -> None:
    run = finished.run_dir()
    before, rows = run.transcripts, run.index
    (run.path / name).unlink()

    assert at_once("small.yaml").returncode == 0

    assert (run.transcripts, run.index) == (before, rows)
    assert run.statuses == {"finished": 2}
    assert run.summary["turns"] == sum(_turns(row["counts"]) for row in rows)
    finished.verified(run.path)


def _number(value: JsonValue) -> float:
    assert isinstance(value, int | float)
    return value


def _turns(counts: JsonValue) -> int:
    assert isinstance(counts, dict)
    return int(_number(counts["turns"]))
