"""`mac-run plan`, and `mac-run calibrate` on processes of the stub: what they print, write and refuse."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.latency import Calibration, Calibrations
from mac_runner.plan import AutoShard
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, AtOnce, Lab, ending, refusals, scripted, served
from tests.cli.lab import experiment as game
from tests.planning.study import experiment, played, written
from tests.sim.stepping import TRUE

PLAN = "plan study.yaml --calibration"


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 12 discussions."""
    folder = tmp_path_factory.mktemp("pilot")
    played(written(folder, experiment(12)), folder / "pilot")
    return folder / "pilot"


@pytest.fixture
def here(lab: Lab, pilot: Path) -> Path:
    """The working directory, with the experiment and its pilot."""
    shutil.copytree(pilot, lab.path / "pilot")
    written(lab.path, experiment(12))
    return lab.path


def calibration(**changed: object) -> Calibrations:
    """A file with one calibration of the study's model."""
    fields = {"model": "stub", "gpu": "H100", "engine": "vllm 1", "steps": TRUE, "in_flight": (1, 4, 16)}
    return Calibrations(calibrations=(Calibration.model_validate({**fields, "requests": 9, "error": 0.01, **changed}),))


def rows(at_once: AtOnce, command: str) -> list[dict[str, Any]]:
    """The figures of a plan, a row for each size."""
    found: list[dict[str, Any]] = json.loads(at_once(f"{command} --json --resamplings 0").done().stdout)["rows"]
    return found


@pytest.mark.ci
def test_it_prints_hours_costs_and_the_limit_and_leaves_nothing(
    here: Path, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    with at_once.lab.unchanged():
        done = at_once(f"{PLAN} pilot --lanes 1,2,8 --price 2.5 --resamplings 2")
        done.done("lanes is faster", "2 resamplings of")

    lines = done.stdout.splitlines()
    assert lines[0].startswith("study: 12 conversations, about ")
    assert "1 lane of 8 slots" in lines[1]
    assert "2.5 per GPU-hour" in lines[1]
    table = next(number for number, line in enumerate(lines) if line.startswith("lanes "))
    assert re.split(r"\s{2,}", lines[table]) == [
        *("lanes", "slots", "hours", "GPU-hours", "cost", "slots used", "prefix hits", "waiting", "limit")
    ]
    rows = [line.split() for line in lines[table + 2 : table + 5]]
    assert [row[:2] for row in rows] == [["1", "8"], ["2", "8"], ["8", "8"]]
    assert [row[7:] for row in (rows[0], rows[2])] == [[rows[0][7], "engine", "panel"], ["0", "gating"]]
    assert [line for line in lines if line.startswith("replies: ")] == snapshot
    assert "1 of 3 (panel: 1 x 8)" in done.stderr.splitlines()[0]


def test_run_that_workers_have_not_ended_is_a_pilot_like_the_run_of_one_process(here: Path, at_once: AtOnce) -> None:
    played(here / "study.yaml", here / "shared", claimed=AutoShard(2))

    (of_workers,), (of_one,) = (rows(at_once, f"{PLAN} {name}") for name in ("shared", "pilot"))
    # Six conversations at a time show less of how the engine batches than twelve.
    assert of_workers["hours"] == pytest.approx(of_one["hours"], rel=0.25)
    assert of_workers["engines"]["panel"]["requests"] == of_one["engines"]["panel"]["requests"]


def test_programs_get_all_figures_and_the_same_ones_each_time(here: Path, at_once: AtOnce) -> None:
    command = f"{PLAN} pilot --slots 4,8 --json --resamplings 0"

    first, second = (json.loads(at_once(command).stdout) for _ in range(2))

    assert first == second
    assert (first["experiment"], first["spread"], first["resamplings"]) == ("study", None, 0)
    (small, large) = first["rows"]
    assert (small["slots"], small["cost"], small["gpus"], small["conversations"]) == (4, None, 1, 12)
    assert small["hours"] > large["hours"] > large["critical_path_hours"] > 0
    assert small["engines"]["panel"]["completion_tokens"] > 0


def test_a_calibration_file_is_planned_with_a_scripted_player(here: Path, at_once: AtOnce) -> None:
    (here / "c.json").write_text(calibration(cache_tokens=4096).model_dump_json())
    at_once(f"{PLAN} c.json --resamplings 0").done("player 'discussant'", "vllm 1 on H100")

    (longer,), (short,) = (rows(at_once, f"{PLAN} c.json --reply-tokens {count}") for count in (40, 5))
    assert longer["hours"] > 2 * short["hours"]


@pytest.mark.ci
def test_what_does_not_fit_is_refused_with_what_to_do(
    here: Path, at_once: AtOnce, lab: Lab, snapshot: SnapshotAssertion
) -> None:
    written(here, experiment(12, model="other"), "other.yaml")
    parallel: JsonObject = {"backend": "vllm", "vllm_config": {"model": "stub", "tensor_parallel_size": 2}}
    written(here, experiment(12) | {"model_definitions": {"panel": parallel}}, "parallel.yaml")
    for name, found in {
        "bad.json": calibration(error=0.7),
        "two.json": Calibrations(calibrations=(*calibration().calibrations, *calibration(gpu="A100").calibrations)),
        "other.json": calibration(model="x"),
        "good.json": calibration(),
    }.items():
        (here / name).write_text(found.model_dump_json())
    (here / "text.json").write_text("notes")
    asked = (
        *(f"study.yaml --calibration {name}" for name in ("none", "text.json", "bad.json", "two.json", "other.json")),
        *(f"{name}.yaml --calibration pilot" for name in ("other", "parallel")),
        "parallel.yaml --calibration good.json",
        *(f"study.yaml --calibration pilot --price {price}" for price in ("0", "nan", "inf")),
        *(f"study.yaml --calibration pilot {flag}" for flag in ("--lanes 1,0", "--policy nobody")),
        "study.yaml",
    )
    assert re.sub(r"note: .*\n", "", refusals(at_once, (f"plan {each}" for each in asked))) == snapshot
    at_once(f"{PLAN} two.json --gpu A100 --resamplings 0").done()


def test_an_experiment_of_scripted_players_needs_no_engine_and_no_calibration(lab: Lab, at_once: AtOnce) -> None:
    command = f"plan {lab.write(game())}"
    at_once(command).done("small: all models are scripted players: no engine is needed")
    for flags in ("--calibration none", "--lanes 4", "--policy nobody", "--price 3"):
        at_once(f"{command} {flags}").refused(f"{flags.split()[0]}: all models are scripted players")
    assert rows(at_once, command) == []


def test_a_run_of_another_environment_or_without_tokens_is_refused(
    here: Path, at_once: AtOnce, lab: Lab, played: Path
) -> None:
    shutil.copytree(played / "runs", here / "runs")
    lab.write(game(models={"m": served("http://h/v1", "x")}), "game.yaml")

    at_once(f"{PLAN} runs/small").refused("environment 'town_of_salem', ")
    at_once("plan game.yaml --calibration runs/small").refused("replies of 'x'")


@pytest.mark.ci
def test_a_signal_ends_it_soon_and_says_so(here: Path, lab: Lab) -> None:
    command = f"{PLAN} pilot --lanes 64 --set conversation_config.conversations=100000"
    planning = lab.start(*command.split())
    assert planning.stderr is not None
    assert planning.stderr.readline().startswith("plan: simulating 1 of 1")

    planning.send_signal(signal.SIGINT)

    found = ending(planning).ends(Exit.INTERRUPTED)
    assert (found.stdout, found.stderr[:20]) == ("", "mac-run: interrupted")


def on_stub(*flags: str) -> JsonObject:
    line = [sys.executable, "-m", "tests.sim.engine_stub", "--port", "{port}", "--model", "{model}", *flags]
    config: JsonObject = {"model": "stub", "engine": "command", "command": [*line], "max_num_seqs": 4}
    return {"backend": "fleet", "fleet_config": config}


def measured(lab: Lab, model: JsonObject) -> str:
    fleet: JsonObject = {"gpus": 2, "probe": {"start_s": 20}}
    return lab.write(game(models={"stub": model}) | ({"fleet": fleet} if model["backend"] == "fleet" else {}))


@pytest.mark.ci
def test_models_are_measured_and_a_latency_can_name_the_file(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = measured(lab, on_stub("--latency-ms", "40", "--tokens", "16"))

    at_once("calibrate", file, "--seconds", "0.4").done("stub")

    (known,) = json.loads((lab.path / "calibration.json").read_text())["calibrations"]
    assert (known["model"], known["gpu"], known["engine"], known["in_flight"]) == ("stub", "none", "command", [1, 4])
    at_once(measured(lab, scripted_with_latency()), "--dry-run").done()


def scripted_with_latency() -> JsonObject:
    return {**scripted(), "latency": {"calibration": {"file": "calibration.json", "model": "stub"}}}


@pytest.mark.ci
def test_what_cannot_be_measured_is_refused_and_leaves_the_file_and_no_process(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = lab.path / "calibration.json"
    out.write_text("notes of mine")
    file = measured(lab, on_stub())

    at_once("calibrate", file).refused("calibration.json is", "with --out")
    assert out.read_text() == "notes of mine"

    at_once("calibrate", measured(lab, scripted_with_latency() | {"latency": None}), "--out", "o.json").refused(
        "are scripted players"
    )

    broken = on_stub("--no-such-flag", "1")
    at_once("calibrate", measured(lab, broken), "--out", "other.json").ends(Exit.INTERRUPTED, "no-such-flag")
    assert not Path("other.json").exists()


@pytest.mark.ci
def test_a_server_is_measured_by_its_address_alone_and_its_gpu_is_what_the_user_says(
    lab: Lab, at_once: AtOnce, stub_url: str
) -> None:
    command = f"calibrate --base-url {stub_url} --model stub --seconds 0.3"
    at_once(f"{command} --in-flight 8").done(told="with --gpu")

    at_once(f"{command} --gpu H100 --in-flight 1").done()
    known = json.loads((lab.path / "calibration.json").read_text())["calibrations"]
    assert [(one["gpu"], one["in_flight"]) for one in known] == [("H100", [1]), ("unknown", [1, 4, 8])]


def test_flags_that_do_not_go_together_are_refused(at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    server = "--base-url http://h/v1"
    flags = (
        *("", f"e.yaml {server} --model m", server, f"{server} --model m --profile p"),
        "--base-url nonsense --model m",
    )

    assert refusals(at_once, (f"calibrate {each}" for each in flags)) == snapshot


@pytest.fixture
def stub_url() -> Iterator[str]:
    """A server of the stub."""
    line = [sys.executable, "-m", "tests.sim.engine_stub", "--port", "0", "--model", "stub", "--latency-ms", "20"]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        server.terminate()
