"""Whole runs in every mode of taking turns: the same transcripts whatever ran at once, and whatever came in between."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from mac_runner.config import load_experiment
from mac_runner.environments import build_environment
from mac_runner.runs.testing import rebuilt_transcript
from mac_runner.store import in_wall_clock_order, read_run
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, experiment, scripted
from tests.patience import ended

MODES: Final = ("seat_order", "simultaneous", "bidding", "information_lag")
SLOW = "model_definitions.slow.scripted_config.latency_ms"


def talking(mode: str, *, conversations: int = 2) -> JsonObject:
    """Seven seats shared by two models that play differently; one of them can be made to answer later."""
    content = experiment(
        conversations=conversations,
        models={"quick": scripted(capacity=256), "slow": scripted("random", capacity=256)},
    )
    calendar: JsonObject = {"discussion_mode": mode, "discussion_floors": 5, "speaking_slots": 3, "max_days": 5}
    return {**content, "game": {"lobby": "classic-7", "calendar": calendar}}


@pytest.mark.ci
@pytest.mark.parametrize("mode", MODES)
def test_transcripts_do_not_depend_on_concurrency_or_latency(lab: Lab, at_once: AtOnce, mode: str) -> None:
    file, made = lab.write(talking(mode)), []
    for concurrency, slow_ms in ((1, 0), (8, 2), (256, 0)):
        out = f"at_{concurrency}"
        done = at_once(file, "--out", out, "--concurrency", str(concurrency), "--set", f"{SLOW}={slow_ms}", "--no-live")
        assert done.returncode == 0, done.stderr
        lab.verified(lab.path / out)
        made.append(type(lab.run_dir())(path=lab.path / out).transcripts)

    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 2


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["bidding", "information_lag"])
def test_transcripts_do_not_depend_on_a_stop_or_a_kill_in_between(lab: Lab, at_once: AtOnce, mode: str) -> None:
    file, run = lab.write(talking(mode)), lab.run_dir()
    assert at_once(file, "--out", "reference", "--concurrency", "1").returncode == 0
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 3)):
        process = lab.start_held(40, file, "--set", f"{SLOW}=4")
        process.send_signal(number)
        assert ended(process)[0] == code
    assert at_once(file, "--concurrency", "8").returncode == 0

    assert run.transcripts == type(run)(path=lab.path / "reference").transcripts
    lab.verified(run.path)


def test_simulated_times_of_information_lag_are_in_the_record(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talking("information_lag", conversations=1))
    at_once(file)
    transcript = read_run(lab.run_dir().path).transcript("small-000000")
    record = transcript["record"]
    assert isinstance(record, dict)
    acts = record["acts"]
    assert isinstance(acts, list)
    spans = [act["simulated"] for act in acts if isinstance(act, dict) and act["phase"] == "discussion"]

    assert len(spans) > 14
    assert all(isinstance(span, dict) and 0 <= span["started_ms"] < span["ended_ms"] for span in spans)  # type: ignore[operator]


def delayed(lab: Lab, at_once: AtOnce) -> JsonObject:
    """A game between engines of different latency, played, and its transcript."""
    models: JsonObject = {
        "quick": {**scripted(), "latency": {"prefill_ms": 0, "kernel_ms": 0}},
        "slow": {**scripted(), "latency": {"prefill_ms": 5, "kernel_ms": 0}},
    }
    content = experiment(conversations=1, models=models)
    content["game"] = {"lobby": "classic-7", "calendar": {"max_days": 3}}
    assert at_once(lab.write(content)).returncode == 0
    return read_run(lab.run_dir().path).transcript("small-000000")


def keys(transcript: JsonObject) -> list[str]:
    turns = transcript["turns"]
    assert isinstance(turns, list)
    return [str(turn["turn"]) for turn in turns if isinstance(turn, dict)]


def test_replay_in_wall_clock_order_takes_the_course_the_run_took(lab: Lab, at_once: AtOnce) -> None:
    transcript = delayed(lab, at_once)
    answers = list(read_run(lab.run_dir().path).answers("small-000000"))
    slow = [answer["latency_ms"] for answer in answers if answer["model"] == "slow"]
    assert all(isinstance(latency_ms, float) and latency_ms >= 4.9 for latency_ms in slow)
    ordered = in_wall_clock_order(transcript, answers)

    assert keys(ordered) == [answer["turn"] for answer in answers]
    # Where all are asked at once, the slow ones answer last.
    assert keys(ordered) != keys(transcript)
    environment = build_environment(load_experiment(lab.path / "small.yaml").experiment)
    assert rebuilt_transcript(ordered, environment)["final_state_sha256"] == transcript["final_state_sha256"]


def test_turn_whose_event_was_lost_stays_behind_the_one_before_it() -> None:
    transcript: JsonObject = {"turns": [{"turn": key} for key in "abcde"]}
    answers: list[JsonObject] = [{"turn": key} for key in "cbe"]

    assert keys(in_wall_clock_order(transcript, answers)) == ["a", "c", "d", "b", "e"]


def test_show_turns_prints_them_as_they_were_answered(lab: Lab, at_once: AtOnce) -> None:
    transcript = delayed(lab, at_once)
    shown = at_once("show", "runs/small", "0", "--turns").stdout.splitlines()
    answers = list(read_run(lab.run_dir().path).answers("small-000000"))

    assert [line.split("  ")[0] for line in shown] == [answer["time"] for answer in answers]
    assert len(shown) == len(keys(transcript))
    assert " ms  " in shown[0]
