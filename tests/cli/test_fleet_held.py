"""`mac-run fleet up`, `status`, `drain` and `down`, and runs on a held fleet: real processes on stub engines."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, experiment, refusals
from tests.patience import ended, wait_for
from tests.sim.engine_stub import command


def on_stubs(name: str = "small", *, slots: int = 2, latency_ms: float = 0.0, lanes: int = 2) -> JsonObject:
    """Discussions of one model on stub engines."""
    template: list[JsonValue] = [*command(port="{port}", slots=slots, latency_ms=latency_ms, start_s=0.0)]
    model: JsonObject = {
        "backend": "fleet",
        "fleet_config": {"model": "stub", "engine": "command", "command": template, "max_num_seqs": slots},
    }
    return {
        "experiment_metadata": {"experiment_name": name},
        "seed": 5,
        "conversation_config": {"environment": "discussion", "conversations": 6},
        "discussion": {"topics": ["Bridge or ferry?"], "max_rounds": 2},
        "fleet": {"gpus": lanes},
        "model_definitions": {"m": model},
        "agent_definitions": [
            {"agent_id": name, "role": "participant", "model": "m", "max_tokens": 6} for name in ("a", "b")
        ],
    }


class Held:
    """A fleet that `mac-run fleet up` holds."""

    def __init__(self, lab: Lab, file: str) -> None:
        self.path = lab.path / "fleet.json"
        self.process = lab.start("fleet", "up", file, "--logs", "logs")
        wait_for(lambda: self._has_written() or self.process.poll() is not None, "a fleet with its file")
        assert self.process.poll() is None, ended(self.process)
        self.engines: list[psutil.Process] = []

    def _has_written(self) -> bool:
        return self.path.exists() and json.loads(self.path.read_bytes())["pid"] == self.process.pid

    def lanes(self, at_once: AtOnce) -> dict[str, JsonObject]:
        """What `status --json` says of the lanes, by name."""
        found = json.loads(at_once("fleet", "status", "--json").stdout)
        return {lane["name"]: lane for lane in found["lanes"]}

    def until(self, at_once: AtOnce, states: dict[str, str]) -> dict[str, JsonObject]:
        """Wait until the lanes are in these states."""
        found: dict[str, JsonObject] = {}

        def is_so() -> bool:
            found.update(self.lanes(at_once))
            return {name: lane["state"] for name, lane in found.items()} == states

        wait_for(is_so, f"lanes in the states {states}")
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # It has ended.
                if "tests.sim.engine_stub" in one.cmdline():
                    self.engines.append(one)
        return found

    def is_gone(self) -> bool:
        """Whether no engine is left."""
        return not any(map(_lives, self.engines))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def hold(lab: Lab) -> Iterator[Callable[[JsonObject], Held]]:
    """Starts `mac-run fleet up`; its engines are killed when the test ends."""
    helds: list[Held] = []

    def start(file: JsonObject) -> Held:
        helds.append(Held(lab, lab.write(file)))
        return helds[-1]

    yield start
    for held in helds:
        held.process.kill()
        for engine in held.engines:
            with suppress(psutil.Error):
                engine.kill()


BOTH_UP = {"m@0": "up", "m@1": "up"}


@pytest.mark.ci
def test_runs_share_a_held_fleet_whose_lanes_are_drained_and_brought_back(
    lab: Lab, at_once: AtOnce, hold: Callable[[JsonObject], Held]
) -> None:
    held = hold(on_stubs())
    lanes = held.until(at_once, BOTH_UP)
    assert stat.S_IMODE(held.path.stat().st_mode) == 0o600

    one = lab.start(lab.write(on_stubs("one", latency_ms=5)), "--fleet", "fleet.json", "--quiet")
    other = lab.start(lab.write(on_stubs("other", latency_ms=5)), "--fleet", "fleet.json", "--quiet")
    assert [ended(run)[0] for run in (one, other)] == [Exit.OK, Exit.OK]
    starts = lab.run_dir("one").events("EVENT_INFER_START")
    assert {start["lane"] for start in starts} == {"m@0", "m@1"}
    assert {start["server"] for start in starts} <= {lane["url"] for lane in lanes.values()}

    assert "2 of 2 up at" in at_once("status", "runs/one").stdout

    unknown = at_once("fleet", "drain", "m@2")
    assert unknown.returncode == Exit.BAD_INPUT
    assert "'m@2'; " in unknown.stderr
    drained = at_once("fleet", "drain", "m@0")
    assert (drained.returncode, "m@0 has ended" in drained.stderr) == (Exit.OK, True)
    found = held.until(at_once, {"m@0": "drained", "m@1": "up"})
    assert (found["m@0"]["deaths"], found["m@0"]["pid"]) == (0, None)
    assert at_once("small.yaml", "--fleet", "fleet.json", "--quiet").returncode == Exit.OK
    assert {start["lane"] for start in lab.run_dir().events("EVENT_INFER_START")} == {"m@1"}

    assert at_once("fleet", "drain", "m@0", "--undo").returncode == Exit.OK
    held.until(at_once, BOTH_UP)
    assert at_once("fleet", "down").returncode == Exit.OK
    code, printed, _ = ended(held.process)
    assert code == Exit.OK
    assert str(lanes["m@0"]["url"]) in printed
    assert held.is_gone()
    assert not held.path.exists()


@pytest.mark.ci
def test_a_killed_holder_leaves_no_engine_and_the_next_one_takes_its_file(
    lab: Lab, at_once: AtOnce, hold: Callable[[JsonObject], Held]
) -> None:
    # A reply takes a minute, so that the run is not over before its fleet.
    held = hold(on_stubs(latency_ms=60_000))
    held.until(at_once, BOTH_UP)
    second = at_once("fleet", "up", "small.yaml")
    assert second.returncode == Exit.IN_USE
    assert f"pid {held.process.pid}" in second.stderr

    run = lab.start(lab.write(on_stubs("long")), "--fleet", "fleet.json", "--quiet")
    wait_for(lambda: run.poll() is not None or lab.run_dir("long").events("EVENT_INFER_START"), "a run on the fleet")
    held.process.send_signal(signal.SIGKILL)
    code, _, words = ended(run)
    assert (code, "has ended or" in words) == (Exit.INTERRUPTED, True), words
    wait_for(held.is_gone, "engines that end with their holder")
    assert held.path.exists()
    assert at_once("fleet", "status").returncode == Exit.INTERRUPTED
    refused = at_once("small.yaml", "--fleet", "fleet.json")
    assert (refused.returncode, "run fleet up" in refused.stderr) == (Exit.INTERRUPTED, True)

    again = hold(on_stubs())
    again.until(at_once, BOTH_UP)
    assert at_once("long.yaml", "--fleet", "fleet.json", "--quiet").returncode == Exit.OK
    again.process.send_signal(signal.SIGTERM)
    assert ended(again.process)[0] == Exit.OK
    assert again.is_gone()
    assert at_once("fleet", "down").returncode == Exit.BAD_INPUT


@pytest.mark.ci
def test_an_engine_that_does_not_start_ends_the_holder_with_the_last_words_of_its_log(lab: Lab) -> None:
    file = on_stubs(lanes=1)
    models = file["model_definitions"]
    assert isinstance(models, dict)
    program = "raise SystemExit('no such weights')"
    models["m"]["fleet_config"]["command"] = ["python3", "-c", program, "{port}"]  # type: ignore[index, call-overload]

    failed = lab.run("fleet", "up", lab.write(file))

    assert failed.returncode == Exit.INTERRUPTED
    assert "no such weights" in failed.stderr
    assert not (lab.path / "fleet.json").exists()


def test_what_cannot_be_done_is_refused_and_changes_nothing(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    lab.write(on_stubs())
    lab.write({**experiment("plain")})
    (lab.path / "mine.txt").write_text("mine")
    too_many = on_stubs("many")
    too_many["fleet"] = {"gpus": 1, "max_agents_per_gpu": 1}
    models = too_many["model_definitions"]
    assert isinstance(models, dict)
    models["other"] = models["m"]
    lab.write(too_many)
    before = sorted(lab.path.iterdir())

    asked = (
        *(f"fleet up {name}.yaml" for name in ("plain", "nowhere", "many")),
        *(f"fleet up small.yaml --out {out}" for out in ("mine.txt", "no/such/fleet.json")),
        *("fleet status", "fleet drain m@0", "fleet down mine.txt", "fleet status ."),
        *(f"{run} --fleet fleet.json" for run in ("small.yaml", "plain.yaml", "small.yaml --dry-run")),
    )
    assert refusals(at_once, asked) == snapshot
    after = [path for path in sorted(lab.path.iterdir()) if not path.name.endswith(".lock")]
    assert after == before
    assert (lab.path / "mine.txt").read_text() == "mine"


@pytest.mark.ci
def test_a_run_whose_model_differs_is_refused_and_the_fleet_goes_on(
    lab: Lab, at_once: AtOnce, hold: Callable[[JsonObject], Held]
) -> None:
    held = hold(on_stubs())
    held.until(at_once, BOTH_UP)
    differing = on_stubs("differing")
    models = differing["model_definitions"]
    assert isinstance(models, dict)
    models["m"]["fleet_config"]["model"] = "another"  # type: ignore[index, call-overload]
    lab.write(differing)

    refused = at_once("differing.yaml", "--fleet", "fleet.json")
    odd = at_once("fleet", "drain", "m@7")
    early = at_once("fleet", "drain", "m@1", "--undo")

    assert refused.returncode == Exit.BAD_INPUT
    assert 'has "another"' in refused.stderr
    assert not Path(lab.path / "runs" / "differing").exists()
    assert (odd.returncode, "no lane 'm@7'" in odd.stderr) == (Exit.BAD_INPUT, True)
    assert (early.returncode, "was not drained" in early.stderr) == (Exit.BAD_INPUT, True)
    assert {lane["state"] for lane in held.lanes(at_once).values()} == {"up"}


@pytest.mark.ci
def test_doctor_shows_the_lanes_and_tries_one_engine_of_each_model(lab: Lab, at_once: AtOnce) -> None:
    lab.write(on_stubs())
    broken = on_stubs("broken", lanes=1)
    models = broken["model_definitions"]
    assert isinstance(models, dict)
    models["m"]["fleet_config"]["command"] = ["python3", "-c", "raise SystemExit('no weights')", "{port}"]  # type: ignore[index, call-overload]
    models["m"]["fleet_config"]["lanes"] = 3  # type: ignore[index, call-overload]
    lab.write(broken)

    well, ill = at_once("doctor", "small.yaml"), at_once("doctor", "broken.yaml")

    assert "fleet        2 lanes" in well.stdout
    assert "m@1 on place 1, 2" in well.stdout
    assert "one token in" in well.stdout
    assert (ill.returncode, "asks for 3 engines" in ill.stdout, "no weights" in ill.stdout) == (
        Exit.FAILURES,
        True,
        True,
    )
    assert not (lab.path / "runs").exists()
