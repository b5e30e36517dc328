"""`mac-run calibrate` on processes of the stub."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, AtOnce, Lab, experiment, refusals


def on_stub(*flags: str) -> JsonObject:
    line = [sys.executable, "-m", "tests.sim.engine_stub", "--port", "{port}", "--model", "{model}", *flags]
    config: JsonObject = {"model": "stub", "engine": "command", "command": [*line], "max_num_seqs": 4}
    return {"backend": "fleet", "fleet_config": config}


def written(lab: Lab, model: JsonObject) -> str:
    fleet: JsonObject = {"gpus": 2, "probe": {"start_s": 20}}
    return lab.write(experiment(models={"stub": model}) | ({"fleet": fleet} if model["backend"] == "fleet" else {}))


@pytest.mark.ci
def test_models_are_measured_and_a_latency_can_name_the_file(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = written(lab, on_stub("--latency-ms", "40", "--tokens", "16"))

    done = at_once("calibrate", file, "--seconds", "0.4")

    assert done.returncode == Exit.OK, done.stderr
    (known,) = json.loads((lab.path / "calibration.json").read_text())["calibrations"]
    assert (known["model"], known["gpu"], known["engine"], known["in_flight"]) == ("stub", "none", "command", [1, 4])
    assert "stub" in done.stdout
    file = written(lab, scripted_with_latency())
    assert at_once(file, "--dry-run").returncode == Exit.OK


def scripted_with_latency() -> JsonObject:
    return {
        "backend": "scripted",
        "scripted_config": {"policy": "heuristic"},
        "latency": {"calibration": {"file": "calibration.json", "model": "stub"}},
    }


@pytest.mark.ci
def test_what_cannot_be_measured_is_refused_and_leaves_the_file_and_no_process(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = lab.path / "calibration.json"
    out.write_text("notes of mine")
    file = written(lab, on_stub())

    refused = at_once("calibrate", file)
    assert (refused.returncode, out.read_text()) == (Exit.BAD_INPUT, "notes of mine")
    assert "calibration.json is" in refused.stderr
    assert "with --out" in refused.stderr

    none = at_once("calibrate", written(lab, scripted_with_latency() | {"latency": None}), "--out", "o.json")
    assert none.returncode == Exit.BAD_INPUT
    assert "are scripted players" in none.stderr

    broken = on_stub("--no-such-flag", "1")
    failed = at_once("calibrate", written(lab, broken), "--out", "other.json")
    assert failed.returncode == Exit.INTERRUPTED, failed.stderr
    assert "no-such-flag" in failed.stderr
    assert not Path("other.json").exists()


@pytest.mark.ci
def test_a_server_is_measured_by_its_address_alone_and_its_gpu_is_what_the_user_says(
    lab: Lab, at_once: AtOnce, stub_url: str
) -> None:
    done = at_once("calibrate", "--base-url", stub_url, "--model", "stub", "--seconds", "0.3", "--in-flight", "8")

    assert done.returncode == Exit.OK, done.stderr
    assert "with --gpu" in done.stderr
    named = at_once(
        *("calibrate", "--base-url", stub_url, "--model", "stub", "--seconds", "0.3", "--gpu", "H100"),
        *("--in-flight", "1"),
    )
    assert named.returncode == Exit.OK, named.stderr
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
