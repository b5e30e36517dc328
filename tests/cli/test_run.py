"""What a run does from start to end, what its flags change, and what its summary and its mirror hold."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import read_run
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, RunDir, experiment, scripted, served
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer
from tests.workers import play_shards


def test_run_plays_everything_and_leaves_these_files(finished: Lab) -> None:
    run = finished.run_dir()

    assert {path.name for path in run.path.iterdir()} == {
        *(".lock", "events.jsonl", "experiment.yaml", "journal", "small_index.jsonl", "summary.json"),
        *("task_manifest.json", "transcripts"),
    }
    assert run.statuses == {"finished": 2}
    assert [row["task_id"] for row in run.index] == ["small-000000", "small-000001"]
    assert list(run.transcripts) == ["small-000000.json", "small-000001.json"]
    finished.verified(run.path)


def test_finished_run_again_changes_no_byte_and_prints_its_end(finished: Lab, at_once: AtOnce) -> None:
    turns = finished.run_dir().summary["turns"]
    with finished.run_dir().unchanged():
        at_once("small.yaml").done(
            *("small   2 of 2 games finished, 0 failed", f"{turns} turns in", "Town", "All replies usable"),
            *("mac-run view runs/small", "mac-run report runs/small", "mac-run show runs/small --tables"),
            told="nothing to run",
        )
        at_once("show runs/small --tables").done("2 finished, 0 failed", "wins by faction", "wins by role")


def test_summary_has_the_promised_numbers(finished: Lab) -> None:
    summary = finished.run_dir().summary

    assert summary["conversations"] == {"planned": 2, "finished": 2, "failed": 0}
    assert summary["tokens"].keys() == {"prompt", "completion", "timing"}
    assert all(isinstance(summary[key], int) for key in ("turns", "corrections", "defaults"))
    assert summary["wall_s"] >= summary["played_s"] > 0
    assert summary["turns_per_s"] == pytest.approx(summary["turns"] / summary["played_s"], rel=0.01)
    model = summary["models"]["m"]
    assert model["capacity"] == model["slots_mean"] == 8
    assert 0 < model["slot_utilisation"] <= 1
    assert model["requests"] == summary["turns"] == sum(row["counts"]["turns"] for row in finished.run_dir().index)
    assert summary["failures"] == []


@pytest.mark.ci
def test_interrupted_run_and_its_status_give_the_same_rate_of_turns(lab: Lab, at_once: AtOnce) -> None:
    """Turns of conversations that had not ended were played in that time too."""
    alone = ("--concurrency", "1")  # With several in flight it depends on the machine when the first game ends.
    lab.stop_held(400, lab.write(experiment(conversations=6)), *alone, by=signal.SIGINT)
    summary, status = lab.run_dir().summary, json.loads(at_once("status runs/small --json").stdout)

    assert 0 < status["conversations"]["finished"] < 6
    assert summary["turns_per_s"] == status["session"]["turns_per_s"] > summary["turns"] / summary["played_s"]


def test_run_with_failed_conversations_ends_with_code_1_and_says_why(lab: Lab, at_once: AtOnce) -> None:
    def refusing(received: Received) -> Behaviour:
        return Say("Well.") if received.is_canary else failure(400, "not today")

    run = lab.run_dir()
    with in_a_thread(OpenaiServer(script=refusing)) as server:
        # Eight definitions for seven seats: each game leaves one out, the one that refuses once in eight games.
        models: dict[str, JsonValue] = {"m0": served(server.url), **{f"m{n}": scripted() for n in range(1, 8)}}
        at_once(experiment(models=models, conversations=8)).ends(Exit.FAILURES, printed="RequestRefusedError")

        assert run.statuses == {"failed": 7, "finished": 1}
        assert run.summary["conversations"] == {"planned": 8, "finished": 1, "failed": 7}
        assert "not today" in json.dumps(run.summary["failures"])
        lab.verified(run.path)
        with run.unchanged():
            at_once("small.yaml").ends(Exit.FAILURES)


def test_quiet_prints_nothing_and_plays_all_the_same(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(experiment(conversations=1), "--quiet")

    assert (process.stdout, process.stderr) == ("", "")
    assert lab.run_dir().statuses == {"finished": 1}


def test_limit_bounds_one_invocation_and_the_next_goes_on(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment(conversations=4))
    run = finished.run_dir()
    first = run.transcripts

    at_once("small.yaml --limit 3").done()
    assert run.statuses == {"finished": 3}
    at_once("small.yaml").done()

    assert run.statuses == {"finished": 4}
    assert run.transcripts | first == run.transcripts
    finished.verified(run.path)


def test_seed_and_set_change_what_is_played(finished: Lab, at_once: AtOnce) -> None:
    name, reference = "small-000000.json", finished.run_dir().transcripts["small-000000.json"]
    for out, flags in (("seed", "--seed 12"), ("same", "--seed 11"), ("set", "--set game.lobby=classic-10")):
        at_once(f"small.yaml --limit 1 {flags} --out {out}").done()

        assert (finished.dir(out).transcripts[name] == reference) == (out == "same")
    assert len(finished.dir("set").index[0]["outcome"]["players"]) == 10


def test_profile_is_laid_over_the_file_and_recorded(lab: Lab, at_once: AtOnce) -> None:
    profiles: JsonValue = {"weak": {"model_definitions": {"m": scripted("random")}}}
    at_once(experiment(conversations=1, profiles=profiles), "--profile", "weak").done()

    config = (lab.run_dir().path / "experiment.yaml").read_text()
    assert "profile: weak" in config
    assert "policy: random" in config
    lab.verified(lab.run_dir().path)


def test_profile_this_version_cannot_run_is_refused_with_its_place(lab: Lab, at_once: AtOnce) -> None:
    models: JsonValue = {"m": {"backend": "vllm", "vllm_config": {"model": "some/model"}}}
    profiles: JsonValue = {"big": {"model_definitions": models}}
    at_once(experiment(profiles=profiles), "--profile", "big").refused("small.yaml:", "model_definitions.m.backend")

    assert not (lab.path / "runs").exists()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_bounds_the_requests_in_flight(lab: Lab, at_once: AtOnce, concurrency: int) -> None:
    models: JsonObject = {"a": scripted(latency_ms=0.1), "b": scripted(latency_ms=0.1)}
    at_once(experiment(models=models), "--concurrency", str(concurrency)).done()

    in_flight = most = 0
    for line in (lab.run_dir().path / "events.jsonl").read_text().splitlines():
        in_flight += ("EVENT_INFER_START" in line) - ("EVENT_INFER_DONE" in line)
        most = max(most, in_flight)
    assert in_flight == 0
    assert most == concurrency


@pytest.mark.parametrize("command", ["small.yaml", "small.yaml --dry-run", "verify runs/small"])
def test_bug_ends_with_a_code_of_its_own_and_its_traceback(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def broken(*_args: object, **_settings: object) -> None:
        raise ZeroDivisionError("a bug")

    for module in ("setup", "maintenance"):
        monkeypatch.setattr(f"mac_runner.runs.{module}.build_environment", broken)

    process = at_once(command).ends(Exit.BUG, "Traceback", "ZeroDivisionError: a bug")
    assert process.stdout == ""
    assert "is a bug" in process.stderr.splitlines()[-1]


def mirrored(lab: Lab) -> dict[str, int]:
    """The run directories in the mirror that are complete, and how many transcripts each has."""
    pytest.importorskip("fsspec")
    records: dict[Path, Any] = {path.parent: json.loads(path.read_text()) for path in lab.path.rglob("mirror.json")}
    return {
        str(place.relative_to(lab.path / "mirror")): read_run(place).counts.done
        for place, record in records.items()
        if record["is_complete"]
    }


def test_run_is_copied_to_its_mirror_once_it_has_ended(lab: Lab, at_once: AtOnce) -> None:
    lab.write(experiment(conversations=4))
    at_once(f"small.yaml --shard 1/2 --out half --mirror file://{lab.path}/mirror --quiet").done()

    assert mirrored(lab) == {".": 2}


@pytest.mark.ci
def test_run_of_workers_is_copied_at_its_end_and_a_copy_that_failed_is_made_by_the_next_start(
    lab: Lab, at_once: AtOnce
) -> None:
    play_shards(lab.path / lab.write(experiment(conversations=4)), lab.path / "shared", 2, 1, 2)
    command, mirror = f"small.yaml --shard auto/2 --out shared --mirror file://{lab.path}/mirror", lab.path / "mirror"

    assert at_once(f"{command} --quiet").done().stderr == ""
    assert mirrored(lab) == {".": 4}
    assert (mirror / "summary.json").exists()

    shutil.rmtree(mirror)
    mirror.write_text("in the way")
    assert at_once(f"{command} --quiet").done().stderr.count("was not copied") == 1
    mirror.unlink()
    assert at_once(f"{command} --quiet").done().stderr == ""
    assert mirrored(lab) == {".": 4}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--out s3://bucket/run --quiet", ("--out: this is the address", "add --mirror URL")),
        ("--mirror nowhere://x", ("nowhere://x cannot",)),
        ("--mirror nowhere://x --dry-run", ("nowhere://x cannot",)),
    ],
)
def test_storage_that_cannot_be_used_is_refused_before_anything_is_made(
    lab: Lab, at_once: AtOnce, flags: str, told: tuple[str, ...]
) -> None:
    lab.write(experiment())
    with lab.unchanged():
        at_once(f"small.yaml {flags}").refused(*told)


def shard(lab: Lab) -> RunDir:
    return lab.run_dir("small.shard-2-of-2")


def test_shard_runs_its_part_in_a_directory_of_its_own(lab: Lab, at_once: AtOnce) -> None:
    at_once(experiment(conversations=3), "--shard", "2/2").done()

    run = shard(lab)
    assert [row["task_id"] for row in run.index] == ["small-000001"]
    assert run.statuses == {"finished": 1}
    assert json.loads((run.path / "shard.json").read_text()) == {"shard": 2, "of": 2}
    lab.verified(run.path)


def test_directory_stays_the_part_of_the_experiment_that_it_is(finished: Lab, at_once: AtOnce) -> None:
    at_once("small.yaml --shard 1/2 --out here").done()
    with finished.dir("here").unchanged():
        at_once("small.yaml --shard 2/2 --out here").refused("shard 2/2")
        at_once("small.yaml --out here --dry-run").refused("the whole experiment")
    at_once("small.yaml --shard 1/2 --out runs/small").refused("and shard 1/2")
    at_once("small.yaml --shard 0/4 --out new").refused("first is 1/4")

    assert not (finished.path / "new").exists()


def test_limit_bounds_the_experiment_and_not_each_shard(at_once: AtOnce) -> None:
    process = at_once(experiment(conversations=8), *("--shard", "2/2", "--limit", "3", "--dry-run"))

    process.done("1 asked for", "-2-of-2, shard 2/2")


def test_shard_with_nothing_in_it_is_finished_at_once(lab: Lab, at_once: AtOnce) -> None:
    for _ in range(2):
        at_once(experiment(conversations=1), "--shard", "2/2").done()

    lab.verified(shard(lab).path)
