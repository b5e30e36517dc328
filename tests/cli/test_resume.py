"""The same command again goes on; another experiment or process may not. `mac-run status` says where a run is."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, ending, experiment, refusals, render_other_prompts, scripted


def test_identity_change_is_refused_naming_fields_and_both_values(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment(seed=12, lobby="classic-8", models={"m": scripted("random")}))
    with finished.run_dir().unchanged():
        for flag in ("--quiet", "--dry-run"):
            at_once("small.yaml", flag).refused(
                *("seed: 11 there, 12 now", '"classic-7" there, "classic-8"', '"heuristic" there, "random"', "--out")
            )


@pytest.mark.ci
def test_runtime_change_goes_on_with_what_is_there(finished: Lab, at_once: AtOnce) -> None:
    first = finished.run_dir().transcripts
    finished.write(experiment(conversations=3, models={"m": scripted(capacity=2, latency_ms=0.1)}))

    at_once("small.yaml").done()

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
    lab.stop_held(1, lab.write(experiment()))

    with monkeypatch.context() as other_version:
        render_other_prompts(other_version)
        assert refusals(at_once, ["small.yaml"]) == snapshot
    assert lab.run_dir().transcripts == {}
    at_once("small.yaml").done()
    lab.verified(lab.run_dir().path)


@pytest.mark.ci
def test_second_process_leaves_at_once_naming_the_first(lab: Lab, at_once: AtOnce) -> None:
    first = lab.start_held(1, lab.write(experiment()))

    at_once("small.yaml").ends(Exit.IN_USE, f"pid {first.pid} ", "--out")

    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    ending(first).ends(Exit.INTERRUPTED)


@pytest.mark.ci
def test_two_processes_let_in_by_a_broken_lock_end_like_one(lab: Lab) -> None:
    file, run = lab.write(experiment(models={"m": scripted(latency_ms=5)})), lab.run_dir()
    code = "import filelock as f; f.FileLock.acquire = lambda lock: None; from mac_runner.cli import main; main()"
    both = [lab.start(file, program=(sys.executable, "-c", code)) for _ in range(2)]

    for process in both:
        ending(process).done()
    assert run.statuses == {"finished": 2}
    assert [row["task_id"] for row in run.index] == ["small-000000", "small-000001"]
    # Each wrote a summary of what it knew of the other; which one came last is chance.
    (run.path / "summary.json").unlink()
    lab.play(file, "--quiet")
    lab.verified(run.path)


@pytest.mark.ci
def test_lock_of_a_killed_process_holds_nobody_up(lab: Lab) -> None:
    file = lab.write(experiment())
    lab.kill_held(1, file)

    lab.play(file)

    assert lab.run_dir().statuses == {"finished": 2}
    lab.verified(lab.run_dir().path)


@pytest.mark.parametrize(
    "lost",
    [
        *(["small_index.jsonl"], ["summary.json"], ["task_manifest.json"]),
        ["small_index.jsonl", "transcripts/small-000001.json"],
    ],
    ids=" ".join,
)
def test_resuming_twice_is_resuming_once(finished: Lab, at_once: AtOnce, lost: list[str]) -> None:
    """What a resume puts right it puts right for good, from the journal: the next one asks nothing, changes no byte."""
    run = finished.run_dir()
    before, rows, asked = run.transcripts, run.index, len(run.events("EVENT_INFER_START"))
    for name in lost:
        (run.path / name).unlink()
    at_once("small.yaml").done()

    with run.unchanged():
        at_once("small.yaml").done()

    assert (run.transcripts, run.index, run.statuses) == (before, rows, {"finished": 2})
    assert len(run.events("EVENT_INFER_START")) == asked
    assert run.summary["turns"] == sum(row["counts"]["turns"] for row in rows)
    finished.verified(run.path)


def test_extended_run_plays_what_is_new_and_says_which_part_came_when(finished: Lab, at_once: AtOnce) -> None:
    run = finished.run_dir()
    rows, first = run.index, run.summary

    at_once("small.yaml --set conversation_config.conversations=4").done()
    at_once("show runs/small --tables").done("\nparts\n")

    second = run.summary
    assert all(row in run.index for row in rows)
    assert [part["indexes"] for part in second["parts"]] == ["0-1", "2-3"]
    assert (first["sessions"], second["sessions"]) == (1, 2)
    assert second["wall_s"] > first["wall_s"] > 0
    assert second["turns"] > first["turns"]
    finished.verified(run.path)


@pytest.mark.ci
def test_status_says_who_is_at_work_and_then_that_it_stopped(lab: Lab, at_once: AtOnce) -> None:
    first = lab.start_held(4, lab.write(experiment()))

    at_once("status runs/small").done("small: running", f"pid {first.pid} on ", "2 half done")
    first.send_signal(signal.SIGKILL)
    ending(first).ends(-signal.SIGKILL)
    at_once("status runs/small").done("small: stopped", "not there any")


def test_status_of_a_finished_run_says_so_for_people_and_programs(finished: Lab, at_once: AtOnce) -> None:
    with finished.run_dir().unchanged():
        at_once("status runs/small").done("small: complete")
        told = json.loads(at_once("status runs/small --json").stdout)

    assert (told["state"], told["owner"], told["eta_s"]) == ("complete", None, 0)
    assert told["conversations"] == {"planned": 2, "finished": 2, "failed": 0, "half_done": 0, "not_begun": 0}
    assert told["models"]["m"]["requests"] == finished.run_dir().summary["turns"]


def test_status_of_a_grid_shows_the_grid_and_each_combination(lab: Lab, at_once: AtOnce) -> None:
    at_once(experiment(conversations=1, _grid={"sweep": {"seed": [1, 2]}}), "--quiet").done()
    with lab.run_dir().unchanged():
        people = at_once("status runs/small").done("small: complete", "combinations    2 of 2 complete").stdout
        told = json.loads(at_once("status runs/small --json").stdout)

    assert people.count(": 1 of 1 finished") == 2
    assert told["state"] == "complete"
    assert told["conversations"] == {"planned": 2, "finished": 2, "failed": 0, "half_done": 0, "not_begun": 0}
    assert [one["values"] for one in told["combinations"]] == [{"seed": 1}, {"seed": 2}]


@pytest.mark.ci
def test_status_of_a_grid_killed_at_its_start_does_not_call_it_complete(lab: Lab, at_once: AtOnce) -> None:
    process = lab.start_held(1, lab.write(experiment(conversations=1, _grid={"sweep": {"seed": [1, 2, 3]}})))
    at_once("status runs/small").done("small: running")
    process.send_signal(signal.SIGKILL)
    ending(process).ends(-signal.SIGKILL)

    at_once("status runs/small").done("small: stopped", "0 of 3 complete")


@pytest.mark.parametrize("verb", ["status", "retry", "verify", "show", "export --to tables"])
def test_directory_without_a_run_is_bad_input_for_every_verb(at_once: AtOnce, verb: str) -> None:
    at_once(f"{verb} nowhere").refused("nowhere is not")


def test_a_missing_manifest_is_named_with_the_command_that_writes_it_again(finished: Lab, at_once: AtOnce) -> None:
    manifest = finished.run_dir().layout.manifest
    manifest.unlink()
    for verb in ("status", "show", "verify", "view --no-open"):
        at_once(f"{verb} runs/small").refused("task_manifest.json is missing", "`mac-run FILE --out runs/small`")
    at_once("small.yaml --out runs/small").done()
    at_once("verify runs/small").done()
