"""What a run does from start to end, and what its flags change."""

from __future__ import annotations

import json

import pytest

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, RunDir, experiment, scripted
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer


def test_run_plays_everything_and_prints_the_table(finished: Lab) -> None:
    run = finished.run_dir()

    assert sorted(path.name for path in run.path.iterdir()) == [
        ".lock",
        "events.jsonl",
        "experiment.yaml",
        "journal",
        "small_index.jsonl",
        "summary.json",
        "task_manifest.json",
        "transcripts",
    ]
    assert run.statuses == {"finished": 2}
    assert [row["task_id"] for row in run.index] == ["small-000000", "small-000001"]
    assert list(run.transcripts) == ["small-000000.json", "small-000001.json"]
    finished.verified(run.path)


def test_finished_run_again_changes_no_byte_and_prints_the_table(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    process = at_once("small.yaml")

    assert process.returncode == 0

    assert finished.run_dir().hashes() == before
    assert "wins by faction" in process.stdout
    assert "nothing to run" in process.stderr


def test_run_with_failed_conversations_ends_with_code_1_and_says_why(lab: Lab, at_once: AtOnce) -> None:
    def refusing(received: Received) -> Behaviour:
        return Say("Well.") if received.is_canary else failure(400, "not today")

    with in_a_thread(OpenaiServer(script=refusing)) as server:
        # Eight definitions for seven seats: each game leaves one out, the one that refuses once in eight games.
        models: dict[str, JsonValue] = {f"m{n}": scripted() for n in range(1, 8)}
        config: JsonObject = {"model": "stub", "base_urls": [server.url]}
        models = {"m0": {"backend": "openai", "openai_config": config}, **models}
        file = lab.write(experiment(models=models, conversations=8))
        process, run = at_once(file), lab.run_dir()

    assert process.returncode == 1
    assert run.statuses == {"failed": 7, "finished": 1}
    assert run.summary["conversations"] == {"planned": 8, "finished": 1, "failed": 7}
    assert "not today" in json.dumps(run.summary["failures"])
    assert "RequestRefusedError" in process.stdout
    lab.verified(run.path)
    before = run.hashes()

    again = at_once(file)

    assert again.returncode == 1
    assert run.hashes() == before


def test_quiet_prints_nothing_and_plays_all_the_same(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(lab.write(experiment(conversations=1)), "--quiet")

    assert (process.stdout, process.stderr) == ("", "")
    assert lab.run_dir().statuses == {"finished": 1}


def test_limit_bounds_one_invocation_and_the_next_goes_on(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment(conversations=4))
    first = finished.run_dir().transcripts

    assert at_once("small.yaml", "--limit", "3").returncode == 0
    assert finished.run_dir().statuses == {"finished": 3}
    assert at_once("small.yaml").returncode == 0

    after = finished.run_dir().transcripts
    assert finished.run_dir().statuses == {"finished": 4}
    assert {name: after[name] for name in first} == first
    finished.verified(finished.run_dir().path)


def test_seed_and_set_change_what_is_played(finished: Lab, at_once: AtOnce) -> None:
    assert at_once("small.yaml", "--limit", "1", "--seed", "12", "--out", "seed").returncode == 0
    assert at_once("small.yaml", "--limit", "1", "--seed", "11", "--out", "same").returncode == 0
    assert at_once("small.yaml", "--limit", "1", "--set", "game.lobby=classic-10", "--out", "set").returncode == 0

    name = "small-000000.json"
    reference = finished.run_dir().transcripts[name]
    assert _run(finished, "same").transcripts[name] == reference
    assert _run(finished, "seed").transcripts[name] != reference
    assert _seats(finished.run_dir()) == 7
    assert _seats(_run(finished, "set")) == 10


def test_profile_is_laid_over_the_file_and_recorded(lab: Lab, at_once: AtOnce) -> None:
    profiles: JsonValue = {"weak": {"model_definitions": {"m": scripted("random")}}}
    file = lab.write(experiment(conversations=1, profiles=profiles))

    assert at_once(file, "--profile", "weak").returncode == 0

    config = (lab.run_dir().path / "experiment.yaml").read_text()
    assert "profile: weak" in config
    assert "policy: random" in config
    lab.verified(lab.run_dir().path)


def test_profile_this_version_cannot_run_is_refused_with_its_place(lab: Lab, at_once: AtOnce) -> None:
    models: JsonValue = {"m": {"backend": "vllm", "vllm_config": {"model": "some/model"}}}
    file = lab.write(experiment(profiles={"big": {"model_definitions": models}}))

    process = at_once(file, "--profile", "big")

    assert process.returncode == 2
    assert "small.yaml:" in process.stderr
    assert "model_definitions.m.backend" in process.stderr
    assert not (lab.path / "runs").exists()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_bounds_the_requests_in_flight(lab: Lab, at_once: AtOnce, concurrency: int) -> None:
    file = lab.write(experiment(models={"a": scripted(latency_ms=0.1), "b": scripted(latency_ms=0.1)}))

    assert at_once(file, "--concurrency", str(concurrency)).returncode == 0

    in_flight = most = 0
    (log,) = lab.run_dir().path.glob("events.jsonl")
    for line in log.read_text().splitlines():
        in_flight += ("EVENT_INFER_START" in line) - ("EVENT_INFER_DONE" in line)
        most = max(most, in_flight)
    assert in_flight == 0
    assert most == concurrency


def _run(lab: Lab, name: str) -> RunDir:
    return RunDir(path=lab.path / name)


def _seats(run: RunDir) -> int:
    outcome = run.index[0]["outcome"]
    assert isinstance(outcome, dict)
    players = outcome["players"]
    assert isinstance(players, list)
    return len(players)


@pytest.mark.parametrize("args", [("small.yaml",), ("small.yaml", "--dry-run"), ("verify", "runs/small")])
def test_bug_ends_with_a_code_of_its_own_and_its_traceback(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    def broken(*_args: object, **_settings: object) -> None:
        raise ZeroDivisionError("a bug")

    for module in ("setup", "maintenance"):
        monkeypatch.setattr(f"mac_runner.runs.{module}.build_environment", broken)

    process = at_once(*args)

    assert process.returncode == 70
    assert process.stdout == ""
    assert "Traceback" in process.stderr
    assert "ZeroDivisionError: a bug" in process.stderr
    assert "is a bug" in process.stderr.splitlines()[-1]
