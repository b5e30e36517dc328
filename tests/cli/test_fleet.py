"""`mac-run doctor --fleet`, `mac-run fleet up`, `status`, `drain` and `down`, and runs on a held fleet of stubs."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Ended, Lab, differing, discussion, ending, experiment, refusals
from tests.fleet.smi import listing, put_smi
from tests.patience import ended, is_alive, wait_for
from tests.sim.engine_stub import command

CONFIG = "model_definitions.folk.fleet_config"
FIRST_PORT = 19100
"""Outside the range from which fleets of other tests take theirs."""

Plan = Callable[..., Ended]


@pytest.fixture
def plan(lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """`mac-run doctor --fleet` of `trial.yaml`, with the overrides that are given."""
    folk: JsonObject = {"model": "Qwen/Qwen3-8B", "engine_args": {"kv_cache_dtype": "fp8"}}
    models: JsonObject = {"folk": {"backend": "fleet", "fleet_config": folk}}
    lab.write(experiment("trial", models=models, fleet={"first_port": FIRST_PORT}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda *overrides: at_once("doctor trial.yaml --fleet", *(f"--set={override}" for override in overrides))


@pytest.mark.ci
def test_plan_prints_lanes_and_command_lines_and_touches_nothing(
    lab: Lab, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_smi(lab.path / "bin", monkeypatch, listing(8))
    with lab.unchanged():
        lines = plan("fleet.max_gpus=2").done("fleet.max_gpus is 2").stdout.splitlines()

    assert [line.split() for line in lines if line.startswith("folk@")] == [
        [f"folk@{n}", "gpu", str(n), "vllm", "Qwen/Qwen3-8B", *f"0.92 = 73.3 GiB 64 {FIRST_PORT + n}".split()]
        for n in (0, 1)
    ]
    commands = [line for line in lines if " serve " in line]
    assert [line.split()[1] for line in commands] == ["CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"]
    assert all("--host 127.0.0.1" in line and "--kv-cache-dtype fp8" in line for line in commands)


def test_plan_says_which_models_take_turns(plan: Plan) -> None:
    more = "{backend: fleet, fleet_config: {model: m%d, engine: nano, lanes: 1}}"

    plan("fleet.gpus=1", *(f"model_definitions.m{n}={more % n}" for n in (1, 2))).done(
        "m2 take turns, 2", "lanes and 1 place\n", "VLLM_SERVER_DEV_MODE=1", "MAC_RUNNER_LANE_ADMIN_KEY=..."
    )


@pytest.mark.ci
def test_what_does_not_fit_is_refused_with_its_place_by_the_plan_and_at_the_start(
    lab: Lab, plan: Plan, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    put_smi(lab.path / "bin", monkeypatch, listing(2))
    overrides = (
        *("fleet.gpus=[0,9]", "fleet.enable_mig=true", f"{CONFIG}.tensor_parallel_size=4", f"{CONFIG}.lanes=9"),
        f"{CONFIG}={{model: m, engine: command, command: [serve]}}",
        f"{CONFIG}={{model: /none/such}}",
    )
    with lab.unchanged():
        for override in overrides:
            started = at_once("trial.yaml --out out --set", override).refused().stderr
            assert plan(override).refused().stderr.splitlines()[0] in started.splitlines()
        told = refusals(at_once, [("doctor", "--fleet", "trial.yaml", "--set", override) for override in overrides])

    assert told == snapshot
    assert psutil.Process().children() == []


@pytest.mark.ci
def test_a_model_whose_weights_fit_no_gpu_is_refused(lab: Lab, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi(lab.path / "bin", monkeypatch, listing(2))
    model = lab.path / "models" / "big"
    model.mkdir(parents=True)
    for name in ("model-00001-of-00002", "model-00002-of-00002", "consolidated"):
        with (model / f"{name}.safetensors").open("wb") as file:
            file.truncate(40 << 30)

    plan(f"{CONFIG}={{model: {model}}}").refused("80.0 GiB of weights, ")
    plan(f"{CONFIG}={{model: {model}, tensor_parallel_size: 2}}").done()


def test_a_port_in_use_is_refused_with_its_lane(plan: Plan) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        plan("fleet.gpus=1", f"fleet.first_port={port}").refused(f"127.0.0.1: {port} (folk@0)")


@pytest.mark.ci
@pytest.mark.parametrize("script", ["exit 9", "echo nonsense"])
def test_a_broken_driver_is_refused_with_what_it_said_where_it_is_asked(
    lab: Lab, plan: Plan, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """A dry run asks it nothing: it is of use on another machine than the one that has the GPUs."""
    put_smi(lab.path / "bin", monkeypatch, script=script)

    plan().refused("nvidia-smi")
    plan("fleet.gpus=1").done()
    at_once("trial.yaml --dry-run").done("folk; mac-run")


def test_a_grid_has_the_engines_of_all_its_combinations(plan: Plan) -> None:
    ended = plan("fleet.gpus=3", f"_grid={{sweep: {{{CONFIG}.model: [one, two, three]}}}}").done()

    lanes = [line.split()[-4] for line in ended.stdout.splitlines() if line.startswith("folk#")]
    assert sorted(lanes) == ["one", "one", "three", "three", "two", "two"]


def test_an_experiment_without_a_fleet_is_refused(plan: Plan) -> None:
    scripted = "model_definitions.folk={backend: scripted, scripted_config: {policy: random}}"

    plan("fleet=null", scripted).refused("another --profile")


def on_stubs(name: str = "small", *, latency_ms: float = 0.0, lanes: int = 2, **changed: JsonValue) -> JsonObject:
    """Discussions of one model on stub engines; `changed` is in its section."""
    template: list[JsonValue] = [*command(port="{port}", slots=2, latency_ms=latency_ms, start_s=0.0)]
    section: JsonObject = {"model": "stub", "engine": "command", "command": template, "max_num_seqs": 2, **changed}
    return discussion(
        {"backend": "fleet", "fleet_config": section},
        name,
        conversations=6,
        agents=({"max_tokens": 6}, {"max_tokens": 6}),
        max_rounds=2,
        fleet={"gpus": lanes},
    )


def that_says(words: str) -> list[JsonValue]:
    """The command of an engine that ends with these words."""
    return ["python3", "-c", f"raise SystemExit({words!r})", "{port}"]


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
        found = json.loads(at_once("fleet status --json").stdout)
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
        return not any(map(is_alive, self.engines))


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

    both = [
        lab.start(lab.write(on_stubs(name, latency_ms=5)), "--fleet", "fleet.json", "--quiet")
        for name in ("one", "other")
    ]
    for run in both:
        ending(run).done()
    starts = lab.run_dir("one").events("EVENT_INFER_START")
    assert {start["lane"] for start in starts} == {"m@0", "m@1"}
    assert {start["server"] for start in starts} <= {lane["url"] for lane in lanes.values()}

    at_once("status runs/one").done("2 of 2 up at")

    at_once("fleet drain m@0").done(told="m@0 has ended")
    found = held.until(at_once, {"m@0": "drained", "m@1": "up"})
    assert (found["m@0"]["deaths"], found["m@0"]["pid"]) == (0, None)
    at_once("small.yaml --fleet fleet.json --quiet").done()
    assert {start["lane"] for start in lab.run_dir().events("EVENT_INFER_START")} == {"m@1"}

    at_once("fleet drain m@0 --undo").done()
    held.until(at_once, BOTH_UP)
    at_once("fleet down").done()
    ending(held.process).done(str(lanes["m@0"]["url"]))
    assert held.is_gone()
    assert not held.path.exists()


@pytest.mark.ci
def test_a_killed_holder_leaves_no_engine_and_the_next_one_takes_its_file(
    lab: Lab, at_once: AtOnce, hold: Callable[[JsonObject], Held]
) -> None:
    # A reply takes a minute, so that the run is not over before its fleet.
    held = hold(on_stubs(latency_ms=60_000))
    held.until(at_once, BOTH_UP)
    at_once("fleet up small.yaml").ends(Exit.IN_USE, f"pid {held.process.pid}")

    run = lab.start(lab.write(on_stubs("long")), "--fleet", "fleet.json", "--quiet")
    wait_for(lambda: run.poll() is not None or lab.run_dir("long").events("EVENT_INFER_START"), "a run on the fleet")
    held.process.send_signal(signal.SIGKILL)
    ending(run).ends(Exit.INTERRUPTED, "has ended or")
    wait_for(held.is_gone, "engines that end with their holder")
    assert held.path.exists()
    at_once("fleet status").ends(Exit.INTERRUPTED)
    at_once("small.yaml --fleet fleet.json").ends(Exit.INTERRUPTED, "run fleet up")

    again = hold(on_stubs())
    again.until(at_once, BOTH_UP)
    at_once("long.yaml --fleet fleet.json --quiet").done()
    again.process.send_signal(signal.SIGTERM)
    ending(again.process).done()
    assert again.is_gone()
    at_once("fleet down").refused()


@pytest.mark.ci
def test_an_engine_that_does_not_start_ends_the_holder_with_the_last_words_of_its_log(lab: Lab) -> None:
    file = lab.write(on_stubs(lanes=1, command=that_says("no such weights")))

    lab.run("fleet", "up", file).ends(Exit.INTERRUPTED, "no such weights")

    assert not (lab.path / "fleet.json").exists()


def test_what_cannot_be_done_is_refused_and_changes_nothing(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    model: Any = on_stubs()["model_definitions"]["m"]  # type: ignore[index, call-overload]
    scarce: JsonObject = {"gpus": 1, "max_agents_per_gpu": 1}
    lab.write(on_stubs())
    lab.write(experiment("plain"))
    lab.write(on_stubs("many") | {"fleet": scarce, "model_definitions": {"m": model, "other": model}})
    (lab.path / "mine.txt").write_text("mine")
    before = lab.files()

    asked = (
        *(f"fleet up {name}.yaml" for name in ("plain", "nowhere", "many")),
        *(f"fleet up small.yaml --out {out}" for out in ("mine.txt", "no/such/fleet.json")),
        *("fleet status", "fleet drain m@0", "fleet down mine.txt", "fleet status ."),
        *(f"{run} --fleet fleet.json" for run in ("small.yaml", "plain.yaml", "small.yaml --dry-run")),
    )
    assert refusals(at_once, asked) == snapshot
    assert [name for name in differing(before, lab.files()) if not name.endswith(".lock")] == []


@pytest.mark.ci
def test_a_run_whose_model_differs_is_refused_and_the_fleet_goes_on(
    lab: Lab, at_once: AtOnce, hold: Callable[[JsonObject], Held]
) -> None:
    held = hold(on_stubs())
    held.until(at_once, BOTH_UP)

    at_once(on_stubs("differing", model="another"), "--fleet", "fleet.json").refused('has "another"')
    at_once("fleet drain m@7").refused("no lane 'm@7'")
    at_once("fleet drain m@1 --undo").refused("was not drained")

    assert not lab.run_dir("differing").path.exists()
    assert {lane["state"] for lane in held.lanes(at_once).values()} == {"up"}


@pytest.mark.ci
def test_doctor_shows_the_lanes_and_tries_one_engine_of_each_model(lab: Lab, at_once: AtOnce) -> None:
    at_once("doctor", on_stubs(), "--set=model_definitions.m.constrained_decoding=none").done(
        "fleet        2 lanes", "m@1    place 1   command   stub", "one token in"
    )
    broken = on_stubs("broken", lanes=1, command=that_says("no weights"))
    at_once("doctor", broken, "--set=model_definitions.m.fleet_config.lanes=3").ends(
        Exit.FAILURES, printed=("asks for 3 engines", "no weights")
    )

    assert not (lab.path / "runs").exists()
