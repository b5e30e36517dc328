"""The fleet of a run: planned before anything is touched, one for all phases and combinations, always closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.fleet.testing import LaneState, LaneStatus
from mac_runner.runs import Player, Results, RunRequest, set_up
from mac_runner.runs.fleet import PlannedFleet
from mac_runner.spec import FleetConfig
from mac_runner.status import Display, StatusFrame
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import RunDir, discussion, echoes, scripted
from tests.kit import written
from tests.patience import LIMIT_S
from tests.sim.fake_fleet import FakeFleet, FakeLanes, lane_at
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer


class Frames(Display):
    """A display that keeps what it is shown."""

    interval_s = 0.01

    def __init__(self) -> None:
        self.frames: list[StatusFrame] = []

    def update(self, frame: StatusFrame) -> None:
        self.frames.append(frame)


def talk(path: Path, **more: JsonValue) -> Path:
    """Discussions of two agents on a fleet, as a file."""
    model: JsonObject = {"backend": "fleet", "fleet_config": {"model": "stub"}}
    return written(path / "talk.yaml", discussion(model, max_rounds=1) | {"fleet": {"gpus": 2}, **more})


def play(file: Path, fleet: FakeFleet, *overrides: str, display: Frames | None = None, **more: object) -> Results:
    """Play a file, with its run directory beside it."""
    player = Player(display=display or Frames(), fleet=fleet, is_process_ours=False, **more)  # type: ignore[arg-type]
    return player.play(set_up(RunRequest(file=file, overrides=overrides, out=file.parent / "run")))


@pytest.fixture
def server() -> Iterator[OpenaiServer]:
    with in_a_thread(OpenaiServer()) as server:
        yield server


def one_lane(server: OpenaiServer, *models: str) -> FakeFleet:
    return FakeFleet({name: FakeLanes(all=(lane_at(server.url, f"{name}@0", gpus=("0",)),)) for name in models})


def test_the_last_picture_of_a_run_says_that_all_that_ended_is_written(tmp_path: Path) -> None:
    """The disk is so slow that all has ended before the first conversation is written."""
    is_over = threading.Event()

    class Watching(Frames):
        def update(self, frame: StatusFrame) -> None:
            super().update(frame)
            if frame.reading.ended == 3:
                is_over.set()

    display = Watching()
    player = Player(display=display, on_ended=lambda _setup, _row: _until(is_over), is_process_ours=False)
    player.play(set_up(RunRequest(file=written(tmp_path / "echo.yaml", echoes(scripted("echo"))), out=tmp_path / "r")))

    assert (display.frames[-1].reading.ended, display.frames[-1].reading.written) == (3, 3)


def _until(event: threading.Event) -> None:
    assert event.wait(LIMIT_S)


def test_run_plays_on_its_fleet_and_its_log_has_the_events_of_the_lanes(tmp_path: Path, server: OpenaiServer) -> None:
    fleet = one_lane(server, "m")
    play(talk(tmp_path), fleet)
    run = RunDir(path=tmp_path / "run")

    assert run.statuses == {"finished": 3}
    assert [event["lane"] for event in run.events("EVENT_LANE_UP")] == ["m@0"]
    for kind in ("START", "DONE"):
        assert {(event["lane"], event["gpu"]) for event in run.events(f"EVENT_INFER_{kind}")} == {("m@0", "0")}
    assert (fleet.opened, fleet.closed) == (1, 1)
    ((config, models),) = fleet.asked
    assert (config.gpus, list(models)) == (2, ["m"])


@pytest.mark.ci
def test_combinations_and_phases_share_one_fleet(tmp_path: Path, server: OpenaiServer) -> None:
    """Here each combination defines the model differently, so each has lanes of its own."""
    precisions: JsonValue = [{"dtype": "half"}, {"dtype": "float32"}]
    keys: JsonObject = {"model_definitions.m.fleet_config.engine_args": precisions, "discussion.max_rounds": [1, 2]}
    names: list[str] = []

    class Named(FakeFleet):
        def __call__(
            self, config: FleetConfig, models: Mapping[str, FleetModelConfig], keys: frozenset[str]
        ) -> PlannedFleet:
            names.extend(models)
            self.models = one_lane(server, *models).models
            return super().__call__(config, models, keys)

    fleet = Named({})
    play(talk(tmp_path, _grid={"sweep": keys}), fleet)

    assert len(names) == 2
    assert all(name.startswith("m#") for name in names)
    assert (fleet.opened, fleet.closed) == (1, 1)
    assert [lanes.starts for lanes in fleet.models.values()] == [1, 1]


def test_combinations_that_ask_for_different_fleets_are_refused(tmp_path: Path, server: OpenaiServer) -> None:
    file = talk(tmp_path, _grid={"zip": {"both": [{"fleet.gpus": 1, "seed": 1}, {"fleet.gpus": 2, "seed": 2}]}})

    with pytest.raises(ConfigError, match=r"talk\.yaml:\d+: fleet: "):
        play(file, one_lane(server, "m"))
    assert [path.name for path in tmp_path.iterdir()] == ["talk.yaml"]


def test_fleet_that_does_not_fit_is_refused_before_a_directory_is_made(tmp_path: Path) -> None:
    def full(_config: object, _models: object, _keys: object) -> PlannedFleet:
        raise ConfigError("fleet.gpus: asks for 2, and there is one", key=("fleet", "gpus"))

    with pytest.raises(ConfigError, match=r"talk\.yaml:\d+: fleet\.gpus"):
        play(talk(tmp_path), full)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["talk.yaml"]


def test_run_that_is_stopped_closes_its_fleet(tmp_path: Path, server: OpenaiServer) -> None:
    fleet = one_lane(server, "m")

    @contextmanager
    def at_once(stop: asyncio.Event) -> Iterator[None]:
        stop.set()
        yield

    assert play(talk(tmp_path), fleet, stopping=at_once).is_interrupted
    assert (fleet.opened, fleet.closed) == (1, 1)


def test_run_whose_lanes_are_all_lost_ends_with_the_reason_and_can_go_on(tmp_path: Path, server: OpenaiServer) -> None:
    fleet = one_lane(server, "m")
    fleet.models["m"].lost = "m@0 is retired: no such model"
    file = talk(tmp_path)

    with pytest.raises(EngineDeadError, match="no such model"):
        play(file, fleet)
    assert (fleet.opened, fleet.closed) == (1, 1)
    play(file, one_lane(server, "m"))
    assert RunDir(path=tmp_path / "run").statuses == {"finished": 3}


def test_last_picture_shows_the_lanes_as_they_were_before_the_fleet_was_closed(
    tmp_path: Path, server: OpenaiServer
) -> None:
    class Closing(FakeFleet):
        def status(self) -> tuple[LaneStatus, ...]:
            return () if self.closed else super().status()

    display = Frames()
    play(talk(tmp_path), Closing(one_lane(server, "m").models), display=display)

    assert [(lane.name, lane.state) for lane in display.frames[-1].reading.lanes] == [("m@0", LaneState.UP)]


def test_engine_that_does_not_start_leaves_no_directory_though_lanes_had_events(
    tmp_path: Path, server: OpenaiServer
) -> None:
    fleet = one_lane(server, "m")
    fleet.models["m"].lost = "no such model"

    with pytest.raises(EngineDeadError):
        play(talk(tmp_path), fleet)
    assert [path.name for path in tmp_path.iterdir()] == ["talk.yaml"]
