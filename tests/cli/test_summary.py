"""`summary.json` has what it is promised to have, and agrees with the index."""

from __future__ import annotations

import json
import signal

import pytest

from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, RunDir, experiment
from tests.patience import ended


@pytest.fixture
def run(finished: Lab) -> RunDir:
    return finished.run_dir()


def test_summary_has_the_promised_numbers(run: RunDir) -> None:
    summary = run.summary

    assert summary["conversations"] == {"planned": 2, "finished": 2, "failed": 0}
    assert _object(summary, "tokens").keys() == {"prompt", "completion", "timing"}
    assert all(isinstance(summary[key], int) for key in ("turns", "corrections", "defaults"))
    assert _number(summary["wall_s"]) >= _number(summary["played_s"]) > 0
    assert _number(summary["turns_per_s"]) == pytest.approx(
        _number(summary["turns"]) / _number(summary["played_s"]), rel=0.01
    )
    model = _object(_object(summary, "models"), "m")
    assert model["capacity"] == model["slots_mean"] == 8
    assert 0 < _number(model["slot_utilisation"]) <= 1
    assert model["requests"] == summary["turns"]
    assert summary["failures"] == []


def test_summary_adds_up_the_index(run: RunDir) -> None:
    summary, counts = run.summary, [_object(row, "counts") for row in run.index]

    assert [summary[key] for key in ("turns", "corrections", "defaults")] == [
        sum(_number(row[key]) for row in counts) for key in ("turns", "corrections", "defaults")
    ]
    assert summary["tokens"] == {
        **{key: sum(_number(_object(row, "tokens")[key]) for row in counts) for key in ("prompt", "completion")},
        "timing": {"cached": 0},
    }


def test_wins_add_up_the_games_with_n_and_an_interval(run: RunDir) -> None:
    wins = _object(run.summary, "wins")
    winners: list[JsonValue] = []
    for row in run.index:
        found = _object(row, "outcome")["winners"]
        assert isinstance(found, list)
        winners += found

    assert {name: _object(_object(wins, "by_faction"), name)["wins"] for name in ("town", "mafia")} == {
        name: winners.count(name) for name in ("town", "mafia")
    }
    assert len(_object(wins, "by_role")) == 7
    for rate in (*_object(wins, "by_faction").values(), *_object(wins, "by_role").values()):
        assert isinstance(rate, dict)
        interval = rate["interval"]
        assert isinstance(interval, list)
        low, high = map(_number, interval)
        assert rate["n"] == 2
        assert 0 <= low <= _number(rate["rate"]) <= high <= 1


def test_table_says_what_the_summary_says(finished: Lab, at_once: AtOnce) -> None:
    printed = at_once("small.yaml").stdout

    assert f"turns           {finished.run_dir().summary['turns']}; 0 corrections, 0 defaults" in printed
    assert "2 finished, 0 failed" in printed
    assert "wins by role" in printed


def _object(source: JsonObject, key: str) -> JsonObject:
    value = source[key]
    assert isinstance(value, dict)
    return value


def _number(value: JsonValue) -> float:
    assert isinstance(value, int | float)
    return value


@pytest.mark.ci
def test_interrupted_run_and_its_status_give_the_same_rate_of_turns(lab: Lab, at_once: AtOnce) -> None:
    """Turns of conversations that had not ended were played in that time too."""
    process = lab.start_held(400, lab.write(experiment(conversations=6)))
    process.send_signal(signal.SIGINT)
    ended(process)
    summary = json.loads((lab.run_dir().path / "summary.json").read_text())
    status = json.loads(at_once("status", "runs/small", "--json").stdout)

    assert 0 < status["conversations"]["finished"] < 6
    assert summary["turns_per_s"] == status["session"]["turns_per_s"] > summary["turns"] / summary["played_s"]
