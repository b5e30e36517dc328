"""`mac-run status RUN`: from another terminal while it runs, and after."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.lab import AtOnce, Lab, experiment
from tests.patience import ended


@pytest.mark.ci
def test_status_says_who_is_at_work_and_then_that_it_stopped(lab: Lab, at_once: AtOnce) -> None:
    first = lab.start_held(4, lab.write(experiment()))

    during = at_once("status", "runs/small")
    first.send_signal(signal.SIGKILL)
    ended(first)
    after = at_once("status", "runs/small")

    assert (during.returncode, after.returncode) == (0, 0)
    assert "small: running" in during.stdout
    assert f"pid {first.pid} on " in during.stdout
    assert "2 half done" in during.stdout
    assert "small: stopped" in after.stdout
    assert "not there any" in after.stdout


def test_status_of_a_finished_run_says_so_for_people_and_programs(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    assert "small: complete" in at_once("status", "runs/small").stdout
    told = json.loads(at_once("status", "runs/small", "--json").stdout)

    assert told["state"] == "complete"
    assert told["owner"] is None
    assert told["conversations"] == {"planned": 2, "finished": 2, "failed": 0, "half_done": 0, "not_begun": 0}
    assert told["eta_s"] == 0
    assert told["models"]["m"]["requests"] == finished.run_dir().summary["turns"]
    assert finished.run_dir().hashes() == before


def test_status_of_a_grid_shows_the_grid_and_each_combination(lab: Lab, at_once: AtOnce) -> None:
    lab.write({**experiment(conversations=1), "_grid": {"sweep": {"seed": [1, 2]}}})
    assert at_once("small.yaml", "--quiet").returncode == 0
    before = lab.run_dir().hashes()
    people, told = at_once("status", "runs/small").stdout, json.loads(at_once("status", "runs/small", "--json").stdout)

    assert "small: complete" in people
    assert "combinations    2 of 2 complete" in people
    assert people.count(": 1 of 1 finished") == 2
    assert told["state"] == "complete"
    assert told["conversations"] == {"planned": 2, "finished": 2, "failed": 0, "half_done": 0, "not_begun": 0}
    assert [one["values"] for one in told["combinations"]] == [{"seed": 1}, {"seed": 2}]
    assert lab.run_dir().hashes() == before


@pytest.mark.ci
def test_status_of_a_grid_killed_at_its_start_does_not_call_it_complete(lab: Lab, at_once: AtOnce) -> None:
    process = lab.start_held(1, lab.write(experiment(conversations=1, _grid={"sweep": {"seed": [1, 2, 3]}})))
    during = at_once("status", "runs/small").stdout
    process.send_signal(signal.SIGKILL)
    ended(process)
    after = at_once("status", "runs/small").stdout

    assert "small: running" in during
    assert "small: stopped" in after
    assert "0 of 3 complete" in after


def test_status_of_another_directory_is_bad_input(lab: Lab, at_once: AtOnce) -> None:
    process = at_once("status", "nowhere")

    assert process.returncode == 2
    assert "nowhere" in process.stderr
