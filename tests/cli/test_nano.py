"""Whole runs on mac_runner's own engine, with a small random model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.lab import ROOT, AtOnce, Lab, discussion, served
from tests.sim.nano_model import make_nano_model

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        find_spec("torch") is None or find_spec("tokenizers") is None, reason="the engine's packages are not installed"
    ),
]

KEY = "canary-0123456789abcdef"
MAIN_JOB = str(ROOT / "experiments" / "tos_100games.yaml")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny")


def job(model: Path, out: str, *more: str) -> tuple[str, ...]:
    """The main job with a model of ours; one small game of it."""
    section = "model_definitions.townsfolk.nano_config"
    settings = (
        *(f"{section}.model={model}", f"{section}.num_threads=1", f"{section}.kv_cache_gib=0.05"),
        *("game.lobby=classic-7", "game.calendar.max_days=1", "agent_definitions.0.max_tokens=6"),
    )
    return (MAIN_JOB, "--profile=nano", *(f"--set={one}" for one in settings), "--limit=1", f"--out={out}", *more)


def test_main_job_is_played_and_played_again_alike(at_once: AtOnce, lab: Lab, model: Path) -> None:
    narrow = "model_definitions.townsfolk.nano_config.max_num_seqs_upper_bound=2"

    played = at_once(*job(model, "runs/one"))
    again = at_once(*job(model, "runs/two", "--set", narrow))

    # A model without a mind may say nothing that can be used, which ends with 1.
    assert played.returncode == again.returncode, played.stderr + again.stderr
    assert played.returncode == 0 or "nothing was usable" in played.stdout
    first, second = lab.run_dir("one"), lab.run_dir("two")
    assert first.statuses == {"finished": 1}
    assert first.transcripts == second.transcripts
    lab.verified(first.path)


def test_doctor_has_the_engine_make_a_token(at_once: AtOnce, model: Path) -> None:
    at_once("doctor", *job(model, "runs/none")[:-2]).done(
        f"model        townsfolk (nano, {model} in this process)\n", "one token in "
    )


def test_model_that_is_not_there_is_bad_input(at_once: AtOnce, tmp_path: Path) -> None:
    at_once(*job(tmp_path / "nowhere", "runs/none")).refused("nowhere is not")


def test_dry_run_loads_nothing(at_once: AtOnce, tmp_path: Path) -> None:
    at_once(*job(tmp_path / "nowhere", "runs/none", "--dry-run")).done()


@pytest.fixture
def guarded(model: Path) -> Iterator[str]:
    """The address of `mac-serve` with a key."""
    command = (sys.executable, "-m", "mac_runner.serve", str(model), "--port", "0", "--api-key-env", "SERVE_KEY")
    small = ("--num-threads", "1", "--kv-cache-gib", "0.05")
    environ = os.environ | {"SERVE_KEY": KEY}
    with subprocess.Popen((*command, *small), stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()


def test_server_with_a_key_is_played_on_over_both_protocols(
    at_once: AtOnce, lab: Lab, guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run, and by the doctor; without the key, or with a wrong one, they say which variable to set."""
    definitions = {
        "TALK_KEY": served(f"{guarded}/v1", "tiny", api_key_env="TALK_KEY"),
        "OLLAMA_API_KEY": served(guarded, "tiny", backend="ollama", num_ctx=4096),
    }
    for variable, definition in definitions.items():
        file = lab.write(
            discussion(definition, conversations=2, max_rounds=1, agents=({"max_tokens": 4}, {"max_tokens": 4}))
        )
        for key in ("", "wrong-0123456789"):
            monkeypatch.setenv(variable, key)
            denied = at_once("doctor", file)
            assert denied.returncode != 0
            assert variable in denied.stdout + denied.stderr
        monkeypatch.setenv(variable, KEY)
        doctor = at_once("doctor", file)
        played = at_once(file, "--out", f"runs/{variable}")

        assert (doctor.returncode, played.returncode) == (0, 0), doctor.stdout + doctor.stderr + played.stderr
        assert lab.run_dir(variable).statuses == {"finished": 2}
        lab.verified(lab.run_dir(variable).path)
        said = [doctor.stdout, doctor.stderr, played.stdout, played.stderr]
        assert not any(KEY in each for each in said)
        assert not any(KEY.encode() in path.read_bytes() for path in lab.path.rglob("*") if path.is_file())
