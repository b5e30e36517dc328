"""`mac-run fleet plan`, with a fake `nvidia-smi`."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, refusals
from tests.fleet.smi import listing, put_smi

FILE = """\
experiment_metadata: {experiment_name: trial}
conversation_config: {environment: town_of_salem, conversations: 3}
fleet: {first_port: 21100}
model_definitions:
  folk:
    backend: fleet
    fleet_config: {model: Qwen/Qwen3-8B, engine_args: {kv_cache_dtype: fp8}}
agent_definitions:
  - {agent_id: player, role: player, model: folk}
"""


@pytest.fixture
def plan(at_once: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AtOnce:
    """`mac-run fleet plan` of the file, with the overrides that are given."""
    (tmp_path / "trial.yaml").write_text(FILE, encoding="utf-8")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run(*overrides: str) -> subprocess.CompletedProcess[str]:
        flags = [part for override in overrides for part in ("--set", override)]
        return at_once("fleet", "plan", str(tmp_path / "trial.yaml"), *flags)

    return run


@pytest.mark.ci
def test_plan_prints_lanes_and_command_lines_and_touches_nothing(
    plan: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_smi(tmp_path / "bin", monkeypatch, listing(8))
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "trial.yaml")

    ended = plan("fleet.max_gpus=2")

    assert ended.returncode == Exit.OK, ended.stderr
    rows = [line.split() for line in ended.stdout.splitlines() if line.startswith("folk@")]
    assert rows == [
        [f"folk@{n}", "gpu", str(n), "vllm", "Qwen/Qwen3-8B", *f"0.92 = 73.3 GiB 64 {21100 + n}".split()]
        for n in (0, 1)
    ]
    assert "fleet.max_gpus is 2" in ended.stdout
    commands = [line for line in ended.stdout.splitlines() if " serve " in line]
    assert [line.split()[1] for line in commands] == ["CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"]
    assert all("--host 127.0.0.1" in line and "--kv-cache-dtype fp8" in line for line in commands)
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "trial.yaml") == before


def test_plan_says_which_models_take_turns(plan: AtOnce) -> None:
    more = "{backend: fleet, fleet_config: {model: m%d, engine: nano, lanes: 1}}"

    ended = plan("fleet.gpus=1", *(f"model_definitions.m{n}={more % n}" for n in (1, 2)))

    assert "m2 take turns, 2" in ended.stdout
    assert "lanes and 1 place\n" in ended.stdout
    assert "VLLM_SERVER_DEV_MODE=1" in ended.stdout
    assert "MAC_RUNNER_LANE_ADMIN_KEY=..." in ended.stdout


@pytest.mark.ci
def test_what_does_not_fit_is_refused_with_its_place_by_the_plan_and_at_the_start(
    lab: Lab, at_once: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    put_smi(tmp_path / "bin", monkeypatch, listing(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "trial.yaml").write_text(FILE, encoding="utf-8")
    config, told = "model_definitions.folk.fleet_config", ""
    for override in (
        *("fleet.gpus=[0,9]", "fleet.enable_mig=true", f"{config}.tensor_parallel_size=4", f"{config}.lanes=9"),
        f"{config}={{model: m, engine: command, command: [serve]}}",
        f"{config}={{model: /none/such}}",
    ):
        planned = refusals(at_once, [("fleet", "plan", "trial.yaml", "--set", override)])
        started = refusals(at_once, [("trial.yaml", "--out", "out", "--set", override)])
        assert planned.splitlines()[1] in started.splitlines()
        told += planned

    assert told == snapshot
    assert not (tmp_path / "out").exists()
    assert psutil.Process().children() == []


@pytest.mark.ci
def test_a_model_whose_weights_fit_no_gpu_is_refused(
    plan: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_smi(tmp_path / "bin", monkeypatch, listing(2))
    model = tmp_path / "models" / "big"
    model.mkdir(parents=True)
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"):
        with (model / name).open("wb") as file:
            file.truncate(40 << 30)

    ended = plan(f"model_definitions.folk.fleet_config={{model: {model}}}")

    assert ended.returncode == Exit.BAD_INPUT
    assert "80.0 GiB of weights, " in ended.stderr
    assert (
        plan(f"model_definitions.folk.fleet_config={{model: {model}, tensor_parallel_size: 2}}").returncode == Exit.OK
    )


def test_a_port_in_use_is_refused_with_its_lane(plan: AtOnce) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        ended = plan("fleet.gpus=1", f"fleet.first_port={port}")

    assert ended.returncode == Exit.BAD_INPUT
    assert f"127.0.0.1: {port} (folk@0)" in ended.stderr


@pytest.mark.ci
@pytest.mark.parametrize("script", ["exit 9", "echo nonsense"])
def test_a_broken_driver_is_refused_with_what_it_said(
    plan: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    put_smi(tmp_path / "bin", monkeypatch, script=script)

    ended = plan()

    assert ended.returncode == Exit.BAD_INPUT
    assert "nvidia-smi" in ended.stderr
    assert plan("fleet.gpus=1").returncode == Exit.OK, "without GPUs it is not asked"


def test_a_grid_has_the_engines_of_all_its_combinations(plan: AtOnce, tmp_path: Path) -> None:
    grid = "_grid: {sweep: {model_definitions.folk.fleet_config.model: [one, two, three]}}\n"
    with (tmp_path / "trial.yaml").open("a", encoding="utf-8") as file:
        file.write(grid)

    ended = plan("fleet.gpus=3")

    assert ended.returncode == Exit.OK, ended.stderr
    lanes = [line.split()[-4] for line in ended.stdout.splitlines() if line.startswith("folk#")]
    assert sorted(lanes) == ["one", "one", "three", "three", "two", "two"]


def test_an_experiment_without_a_fleet_is_refused(plan: AtOnce) -> None:
    scripted = "model_definitions.folk={backend: scripted, scripted_config: {policy: random}}"

    ended = plan("fleet=null", scripted)

    assert ended.returncode == Exit.BAD_INPUT
    assert "another --profile" in ended.stderr


def test_a_dry_run_points_to_the_plan_and_asks_for_no_gpu(
    plan: AtOnce, at_once: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of use on another machine than the one that has the GPUs."""
    put_smi(tmp_path / "bin", monkeypatch, script="exit 9")

    ended = at_once(str(tmp_path / "trial.yaml"), "--dry-run")

    assert ended.returncode == Exit.OK, ended.stderr
    assert "folk; mac-run" in ended.stdout
