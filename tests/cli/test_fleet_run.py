"""Whole runs on lanes in processes of their own: killed, lost for good, interrupted, shared by a grid."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import Lab, RunDir, discussion, ending
from tests.faults.tier import SCALE
from tests.patience import ended, wait_for, wait_for_ends
from tests.sim.engine_stub import command
from tests.sim.held_run import FLEET, held
from tests.sim.nano_model import make_nano_model

KILLS = 2 * SCALE
LANES = 2 if SCALE == 1 else 8
"""A lane that is killed soon after it came back rests twice as long: many kills are spread over many lanes."""
CONVERSATIONS = 60 if SCALE == 1 else 240 * SCALE
HAS_NANO = all(find_spec(package) is not None for package in ("torch", "tokenizers", "fastapi", "uvicorn"))
NAME = "talk"


def stub(*, latency_ms: float = 0.0, slots: int = 2, orders: Path | str = "", **more: JsonValue) -> JsonObject:
    """A model on stub engines."""
    template = command(port="{port}", slots=slots, latency_ms=latency_ms, orders=orders)
    return on_fleet(model="stub", engine="command", command=[*template], max_num_seqs=slots, **more)


def on_fleet(**section: JsonValue) -> JsonObject:
    return {"backend": "fleet", "fleet_config": section}


def on_nano(model: Path, slots: int) -> JsonObject:
    """A model on engines of nano."""
    arguments: JsonObject = {"num_threads": 1, "kv_cache_gib": 0.02}
    return on_fleet(model=str(model), engine="nano", max_num_seqs=slots, engine_args=arguments)


def talk(*models: JsonObject, conversations: int = 8, lanes: int = 2, **more: Any) -> JsonObject:
    """Discussions of two agents; each of these models speaks for one, or one model for both."""
    agents: list[JsonObject] = [{"max_tokens": 6}, {"max_tokens": 6}]
    more = {"fleet": {"gpus": lanes}, **more}
    return discussion([*models], NAME, conversations=conversations, agents=agents, max_rounds=2, seed=5, **more)


def engines(parent: int) -> list[psutil.Process]:
    """The engines that a process has started, the oldest first."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "-m" in words and words[words.index("-m") + 1] in {"tests.sim.engine_stub", "mac_runner.serve"}:
            found.append(process)
    return found


@pytest.fixture
def leftovers() -> Iterator[Callable[[int], list[psutil.Process]]]:
    """Remembers the engines of a process; those that still run when the test ends are killed."""
    seen: list[psutil.Process] = []

    def remember(parent: int) -> list[psutil.Process]:
        seen.extend(engines(parent))
        return seen

    yield remember
    for process in seen:
        with suppress(psutil.Error):  # It has ended.
            process.kill()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny")


def wait_for_events(process: subprocess.Popen[str], run: RunDir, name: str, count: int) -> None:
    """Wait until a run has logged so many events of a name, or is over."""
    wait_for(lambda: len(run.events(name)) >= count or process.poll() is not None, f"{count} times {name}")


def done(lab: Lab, *args: str) -> None:
    """Play to a good end."""
    process = lab.start(*args, "--no-live")
    ending(process).done()


@pytest.mark.ci
def test_killed_engines_change_no_transcript(lab: Lab) -> None:
    """Of one lane's run with the same seeds; nothing is lost or doubled, and the lanes come back.

    The engines die in place of a reply, once all of them are up.
    """
    orders = lab.path / "orders"
    orders.mkdir()
    for name in ("hold", *map(str, Random(1).sample(range(3, 40), KILLS))):
        (orders / name).touch()
    budget: JsonObject = {"gpus": LANES, "restart": {"budget": 100}}
    dying = stub(slots=4 // LANES or 1, orders=orders)
    run = lab.run_dir(NAME)
    process = lab.start(lab.write(talk(dying, conversations=CONVERSATIONS, fleet=budget), "dying.yaml"), "--no-live")
    wait_for_events(process, run, "EVENT_LANE_UP", LANES)
    (orders / "hold").unlink()
    ending(process).done()
    calm = lab.write(talk(stub(slots=8), conversations=CONVERSATIONS, lanes=1), "calm.yaml")
    done(lab, calm, "--out", "runs/calm")

    assert run.statuses == {"finished": CONVERSATIONS}
    assert run.transcripts == lab.run_dir("calm").transcripts
    assert len(run.index) == CONVERSATIONS
    lab.verified(run.path)
    deaths, ups = run.events("EVENT_LANE_DEAD"), run.events("EVENT_LANE_UP")
    assert len(deaths) == KILLS
    assert KILLS < len(ups) <= KILLS + LANES  # Those killed last may not be back when all has been said.
    assert {event["lane"] for event in run.events("EVENT_INFER_DONE")} == {f"m0@{lane}" for lane in range(LANES)}
    # Whoever was not killed went on: what broke was sent again once.
    assert run.events("EVENT_GIVE_UP") == []


@pytest.mark.ci
@pytest.mark.skipif(not HAS_NANO, reason="the packages of nano are not installed")
def test_killed_engines_of_nano_change_no_transcript(lab: Lab, tiny: Path) -> None:
    """As above, with models that generate; the run is held at sixty replies until one of two engines is killed."""
    nano, conversations, run, gate = on_nano(tiny, 2), 40, lab.run_dir(NAME), lab.path / "gate"
    file = lab.write(talk(nano, conversations=conversations))
    process = lab.start(file, "--no-live", program=held(60, gate, FLEET))
    wait_for_events(process, run, "EVENT_LANE_UP", 2)
    wait_for_events(process, run, "EVENT_INFER_DONE", 20)
    assert process.poll() is None, ended(process)
    engines(process.pid)[0].kill()
    wait_for_events(process, run, "EVENT_LANE_DEAD", 1)
    gate.touch()
    ending(process).done()
    done(lab, lab.write(talk(nano, conversations=conversations, lanes=1), "calm.yaml"), "--out", "runs/calm")

    assert run.statuses == {"finished": conversations}
    assert run.transcripts == lab.run_dir("calm").transcripts
    assert len(run.events("EVENT_LANE_DEAD")) == 1
    lab.verified(run.path)


@pytest.mark.ci
def test_run_whose_engines_are_lost_for_good_can_be_gone_on_with_and_says_the_last_words_of_their_log(
    lab: Lab, leftovers: Callable[[int], list[psutil.Process]]
) -> None:
    (lab.path / "engine.sh").write_text(
        "if [ -e broken ]; then echo 'RuntimeError: no memory left on the GPU' >&2; exit 1; fi\nexec \"$@\"\n"
    )
    model = on_fleet(
        model="stub",
        engine="command",
        command=["/bin/sh", "engine.sh", *command(port="{port}", slots=2, latency_ms=2_000)],
        max_num_seqs=2,
    )
    file = lab.write(talk(model, conversations=60))  # For two minutes.
    process = lab.start(file, "--no-live")
    wait_for_events(process, lab.run_dir(NAME), "EVENT_LANE_UP", 2)
    wait_for_events(process, lab.run_dir(NAME), "EVENT_INFER_DONE", 1)
    (lab.path / "broken").touch()
    for engine in leftovers(process.pid):
        engine.kill()
    ending(process).ends(Exit.INTERRUPTED, "RuntimeError: no memory")

    assert {event["lane"] for event in lab.run_dir(NAME).events("EVENT_LANE_RETIRED")} == {"m0@0", "m0@1"}
    (lab.path / "broken").unlink()
    quick = command(port="{port}", latency_ms=0)
    lab.done(file, "--set", f"model_definitions.m0.fleet_config.command={quick}")
    assert lab.run_dir(NAME).statuses == {"finished": 60}
    lab.verified(lab.run_dir(NAME).path)


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_the_run_is_the_end_of_its_engines(
    lab: Lab, leftovers: Callable[[int], list[psutil.Process]], number: signal.Signals
) -> None:
    # More than it could play in the time of this test.
    process = lab.start(lab.write(talk(stub(latency_ms=200), conversations=3000)), "--no-live")
    wait_for_events(process, lab.run_dir(NAME), "EVENT_INFER_DONE", 5)
    started = leftovers(process.pid)
    assert started
    process.send_signal(number)
    ending(process).ends(-number if number is signal.SIGKILL else Exit.INTERRUPTED)

    wait_for_ends(started)


@pytest.mark.ci
def test_engine_that_does_not_start_ends_the_run_with_the_reason_and_leaves_nothing(lab: Lab) -> None:
    model = on_fleet(
        model="stub", engine="command", command=["/bin/sh", "-c", "echo 'no such model' >&2; exit 1", "{port}"]
    )
    process = lab.start(lab.write(talk(model)), "--no-live")
    ending(process).ends(Exit.INTERRUPTED, "no such model")


@pytest.mark.smoke
def test_grid_starts_each_engine_once(lab: Lab) -> None:
    grid = talk(stub(), _grid={"sweep": {"discussion.max_rounds": [1, 2]}})
    lab.done(lab.write(grid))
    directory = lab.run_dir(NAME)

    assert Counter(str(event["lane"]) for event in directory.events("EVENT_LANE_START")) == {"m0@0": 1, "m0@1": 1}
    assert len([*directory.path.glob("summaries/*.json")]) == 2


@pytest.mark.ci
def test_fleet_that_does_not_fit_is_refused_before_anything_is_touched(lab: Lab) -> None:
    file = lab.write(talk(stub(lanes=5), fleet={"gpus": 2, "max_agents_per_gpu": 2}))
    process = lab.start(file)
    ending(process).ends(Exit.BAD_INPUT, f"{file}:")

    assert [path.name for path in lab.path.iterdir()] == [file]


@pytest.mark.ci
@pytest.mark.skipif(not HAS_NANO, reason="the packages of nano are not installed")
@pytest.mark.parametrize("policy", ["batch", pytest.param("fifo", marks=pytest.mark.nightly)])
def test_models_that_take_turns_on_one_place_say_what_they_say_on_places_of_their_own(
    lab: Lab, tiny: Path, policy: str
) -> None:
    other = make_nano_model(lab.path / "other")
    models = [on_nano(path, 4) for path in (tiny, other)]
    swap: JsonObject = {"policy": policy, "residency_s": 0.5}
    turns: JsonObject = {"gpus": 1, "max_agents_per_gpu": 1, "swap": swap}
    apart: JsonObject = {"gpus": 2, "max_agents_per_gpu": 1}
    for name, fleet in (("turns", turns), ("apart", apart)):
        done(lab, lab.write(talk(*models, fleet=fleet), f"{name}.yaml"), "--out", f"runs/{name}")

    run = lab.run_dir("turns")
    assert run.statuses == {"finished": 8}
    assert run.transcripts == lab.run_dir("apart").transcripts
    assert run.events("EVENT_LANE_SWAP")
    assert run.events("EVENT_LANE_DEAD") == run.events("EVENT_RETRY") == []
    lab.verified(run.path)
