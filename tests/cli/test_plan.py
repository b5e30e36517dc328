"""`mac-run plan`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.latency import Calibration, Calibrations
from mac_runner.store import ShardsRecord
from mac_runner.store.testing import encode_shards, shard_directory
from tests.cli.lab import AtOnce, Lab, refusals, scripted
from tests.cli.lab import experiment as game
from tests.patience import ended
from tests.runs.study import experiment, played, written
from tests.sim.stepping import TRUE


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


@pytest.mark.ci
def test_it_prints_hours_costs_and_the_limit_and_leaves_nothing(
    here: Path, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    before = sorted(here.rglob("*"))

    done = at_once(
        *("plan", "study.yaml", "--calibration", "pilot", "--lanes", "1,2,8", "--price", "2.5", "--resamplings", "2")
    )

    assert done.returncode == Exit.OK, done.stderr
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
    assert any("lanes is faster" in line for line in lines)
    assert any("2 resamplings of" in x for x in lines)
    assert [line for line in lines if line.startswith("replies: ")] == snapshot
    assert "1 of 3 (panel: 1 x 8)" in done.stderr.splitlines()[0]
    assert sorted(here.rglob("*")) == before


def test_shards_that_are_not_merged_are_a_pilot_like_the_run_of_one_process(here: Path, at_once: AtOnce) -> None:
    record = ShardsRecord(of=2, experiment_name="study", identity="ab12", conversations=12)
    (here / "shared").mkdir()
    (here / "shared" / "shards.json").write_bytes(encode_shards(record))
    for shard in record.shards():
        played(here / "study.yaml", shard_directory(here / "shared", shard), shard=shard)

    whole, parts = (
        at_once("plan", "study.yaml", "--calibration", name, "--resamplings", "0", "--json")
        for name in ("pilot", "shared")
    )

    assert (parts.returncode, whole.returncode) == (Exit.OK, Exit.OK), parts.stderr
    ((of_parts,), (of_whole,)) = (json.loads(each.stdout)["rows"] for each in (parts, whole))
    # Six conversations at a time show less of how the engine batches than twelve.
    assert of_parts["hours"] == pytest.approx(of_whole["hours"], rel=0.25)
    assert of_parts["engines"]["panel"]["requests"] == of_whole["engines"]["panel"]["requests"]
    shutil.rmtree(here / "shared" / "shards")
    refused = at_once("plan", "study.yaml", "--calibration", "shared")
    assert refused.returncode == Exit.BAD_INPUT
    assert "none has begun" in refused.stderr


def test_programs_get_all_figures_and_the_same_ones_each_time(here: Path, at_once: AtOnce) -> None:
    flags = ("plan", "study.yaml", "--calibration", "pilot", "--slots", "4,8", "--json", "--resamplings", "0")

    first, second = (json.loads(at_once(*flags).stdout) for _ in range(2))

    assert first == second
    assert (first["experiment"], first["spread"], first["resamplings"]) == ("study", None, 0)
    (small, large) = first["rows"]
    assert (small["slots"], small["cost"], small["gpus"], small["conversations"]) == (4, None, 1, 12)
    assert small["hours"] > large["hours"] > large["critical_path_hours"] > 0
    assert small["engines"]["panel"]["completion_tokens"] > 0


def test_a_calibration_file_is_planned_with_a_scripted_player(here: Path, at_once: AtOnce) -> None:
    (here / "c.json").write_text(calibration(cache_tokens=4096).model_dump_json())
    flags = ("plan", "study.yaml", "--calibration", "c.json", "--resamplings", "0")

    done = at_once(*flags)
    longer = at_once(*flags, "--reply-tokens", "40", "--json")
    short = at_once(*flags, "--reply-tokens", "5", "--json")

    assert done.returncode == Exit.OK, done.stderr
    assert "player 'discussant'" in done.stdout
    assert "vllm 1 on H100" in done.stdout
    hours = [json.loads(found.stdout)["rows"][0]["hours"] for found in (longer, short)]
    assert hours[0] > 2 * hours[1]


@pytest.mark.ci
def test_what_does_not_fit_is_refused_with_what_to_do(
    here: Path, at_once: AtOnce, lab: Lab, snapshot: SnapshotAssertion
) -> None:
    lab.write(game(), "game.yaml")
    lab.write(game(models={"m": scripted()}, name="fast"), "scripted.yaml")
    written(here, experiment(12, model="other"), "other.yaml")
    content = experiment(12)
    content["model_definitions"] = {
        "panel": {"backend": "vllm", "vllm_config": {"model": "stub", "tensor_parallel_size": 2}}
    }
    written(here, content, "parallel.yaml")
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
        *(f"{name}.yaml --calibration pilot" for name in ("game", "other", "parallel")),
        "parallel.yaml --calibration good.json",
        *(f"study.yaml --calibration pilot --price {price}" for price in ("0", "nan", "inf")),
        *(f"study.yaml --calibration pilot {flag}" for flag in ("--lanes 1,0", "--policy nobody")),
        "study.yaml",
    )
    assert re.sub(r"note: .*\n", "", refusals(at_once, (f"plan {each}" for each in asked))) == snapshot
    assert at_once("plan", "study.yaml", "--calibration", "two.json", "--gpu", "A100", "--resamplings", "0").stdout


def test_a_run_of_another_environment_or_without_tokens_is_refused(
    here: Path, at_once: AtOnce, lab: Lab, played: Path
) -> None:
    shutil.copytree(played / "runs", here / "runs")
    other = game(models={"m": {"backend": "openai", "openai_config": {"model": "x", "base_urls": ["http://h/v1"]}}})
    lab.write(other, "game.yaml")

    environment = at_once("plan", "study.yaml", "--calibration", "runs/small")
    tokens = at_once("plan", "game.yaml", "--calibration", "runs/small")

    assert environment.returncode == tokens.returncode == Exit.BAD_INPUT
    assert "environment 'town_of_salem', " in environment.stderr
    assert "replies of 'x'" in tokens.stderr


@pytest.mark.ci
def test_a_signal_ends_it_soon_and_says_so(here: Path, lab: Lab) -> None:
    planning = lab.start(
        *("plan", "study.yaml", "--calibration", "pilot", "--set", "conversation_config.conversations=100000"),
        *("--lanes", "64"),
    )
    assert planning.stderr is not None
    assert planning.stderr.readline().startswith("plan: simulating 1 of 1")

    planning.send_signal(signal.SIGINT)

    code, out, err = ended(planning)
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert err.startswith("mac-run: interrupted")
