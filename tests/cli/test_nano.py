"""Whole runs on mac_runner's own engine, with a small random model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.lab import ROOT, AtOnce, Lab
from tests.sim.nano_model import make_nano_model

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("tokenizers") is None, reason="the engine's packages are not installed"
)

MAIN_JOB = str(ROOT / "experiments" / "tos_100games.yaml")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny")


def job(model: Path, out: str, *more: str) -> tuple[str, ...]:
    """The main job with a model of ours; one small game of it."""
    settings = {
        "model_definitions.townsfolk.nano_config.model": str(model),
        "model_definitions.townsfolk.nano_config.num_threads": "1",
        "model_definitions.townsfolk.nano_config.kv_cache_gib": "0.05",
        "game.lobby": "classic-7",
        "game.calendar.max_days": "1",
        "agent_definitions.0.max_tokens": "6",
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return (MAIN_JOB, "--profile", "nano", *sets, "--limit", "1", "--out", out, *more)


def test_main_job_is_played_and_played_again_alike(at_once: AtOnce, lab: Lab, model: Path) -> None:
    narrow = "model_definitions.townsfolk.nano_config.max_num_seqs_upper_bound=2"

    played = at_once(*job(model, "runs/one"))
    again = at_once(*job(model, "runs/two", "--set", narrow))

    assert (played.returncode, again.returncode) == (0, 0), played.stderr + again.stderr
    first, second = lab.run_dir("one"), lab.run_dir("two")
    assert first.statuses == {"finished": 1}
    assert first.transcripts == second.transcripts
    lab.verified(first.path)


def test_doctor_has_the_engine_make_a_token(at_once: AtOnce, model: Path) -> None:
    process = at_once("doctor", *job(model, "runs/none")[:-4])

    assert process.returncode == 0, process.stderr
    assert f"model        townsfolk (nano, {model} in this process)\n" in process.stdout
    assert "one token in " in process.stdout


def test_model_that_is_not_there_is_bad_input(at_once: AtOnce, tmp_path: Path) -> None:
    process = at_once(*job(tmp_path / "nowhere", "runs/none"))

    assert process.returncode == 2
    assert "nowhere is no directory" in process.stderr
    assert "Traceback" not in process.stderr


def test_dry_run_loads_nothing(at_once: AtOnce, tmp_path: Path) -> None:
    assert at_once(*job(tmp_path / "nowhere", "runs/none", "--dry-run")).returncode == 0
