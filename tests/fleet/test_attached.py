"""Runs that use a fleet of another process: over a real socket, with a fleet without engines behind it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.testing import LaneAddress
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.fleet.testing import (
    AttachedFleet,
    FleetClient,
    FleetHost,
    HeldFleet,
    HeldModel,
    LaneState,
    LaneStatus,
    OnEvent,
    read_held,
)
from mac_runner.section import File
from tests import patience
from tests.fleet.real_fleet import awaited
from tests.kit import StridingClock
from tests.sim.fake_fleet import FakeLanes, lane_at

TOKEN = "secret-token"
FILE = Path("fleet.json")
CONFIGS = {"a": FleetModelConfig(model="small"), "b": FleetModelConfig(model="big", engine_args={"x": [1, {"y": 2}]})}


def address(name: str) -> LaneAddress:
    """The address of a lane."""
    lane = lane_at(f"http://127.0.0.1:{9000 + int(name[-1])}/v1", name, gpus=(name[-1],))
    return replace(lane, admin_key="key of the engine")


class FakeFleet:
    """Two lanes of the model `a` and one of `b`."""

    def __init__(self) -> None:
        self.models = {
            name: FakeLanes(tuple(map(address, lanes)), stall_s=7.5, may_start=asyncio.Event())
            for name, lanes in (("a", ("a@0", "a@1")), ("b", ("b@2",)))
        }
        self.lanes = {
            lane.name: LaneStatus(name=lane.name, model=name, place="place 0", state=LaneState.UP, slots=4)
            for name, model in self.models.items()
            for lane in model.all
        }
        self.is_idle = asyncio.Event()

    def model(self, name: str) -> FakeLanes:
        return self.models[name]

    def may_start(self, model: str) -> None:
        """Let those go on who wait for a start."""
        event = self.models[model].may_start
        assert event is not None
        event.set()

    def status(self) -> tuple[LaneStatus, ...]:
        return tuple(self.lanes.values())

    async def drain(self, lane: str) -> None:
        self._set(lane, LaneState.DRAINING)
        await self.is_idle.wait()
        self._set(lane, LaneState.DRAINED)

    def ask_up(self, lane: str) -> None:
        self._set(lane, LaneState.STARTING)

    def _set(self, lane: str, state: LaneState) -> None:
        self.lanes[lane] = replace(self.lanes[lane], state=state)
        lanes = self.models[self.lanes[lane].model]
        lanes.up = tuple(each for each in lanes.all if self.lanes[each.name].state is LaneState.UP)
        lanes.tell()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def hosted(fleet: FakeFleet, on_down: Callable[[], None] = lambda: None) -> AsyncIterator[FleetHost]:
    async with FleetHost(fleet, tuple(CONFIGS), TOKEN, on_down) as host:
        held = HeldFleet(
            pid=os.getpid(),
            host=platform.node(),
            started_at="2026-01-01T00:00:00.000Z",
            command="mac-run fleet up x.yaml",
            control=f"http://127.0.0.1:{host.port}",
            token=TOKEN,
            models={name: HeldModel.of(config, fleet.model(name)) for name, config in CONFIGS.items()},
        )
        write(held.encoded())
        yield host


def write(data: bytes) -> None:
    FILE.write_bytes(data)


def rewrite(**changes: str) -> None:
    """Change what the file of a fleet says."""
    write(json.dumps({**json.loads(FILE.read_bytes()), **changes}).encode())


def attached(on_event: OnEvent = lambda _name, _fields: None) -> AttachedFleet:
    return AttachedFleet(FILE, CONFIGS, clock=StridingClock(0.0), on_event=on_event)


async def until(condition: Callable[[], bool]) -> None:
    await patience.until(condition, "the other side")


@awaited
async def test_a_run_sees_lanes_come_and_go_and_the_end_of_the_fleet() -> None:
    fleet = FakeFleet()
    changes: list[tuple[str, ...]] = []
    hosting = hosted(fleet)
    await hosting.__aenter__()
    async with attached() as one:
        lanes = one.model("a")
        lanes.on_change(lambda: changes.append(tuple(lane.name for lane in lanes.up)))
        starting = asyncio.create_task(lanes.start())
        await until(lambda: fleet.models["a"].starts == 1)
        fleet.may_start("a")
        await starting
        # A fleet that several runs use keeps its weights.
        assert lanes.up == tuple(replace(lane, admin_key=None) for lane in fleet.models["a"].all)
        assert lanes.stall_s == fleet.models["a"].stall_s
        assert not one.model("b").up

        fleet.models["a"].up = fleet.models["a"].all[1:]
        fleet.models["a"].tell()
        await until(lambda: changes[-1:] == [("a@1",)])
        await hosting.__aexit__(None, None, None)
        await until(lambda: lanes.lost is not None)
        assert not lanes.up
        assert f"pid {os.getpid()}" in (lanes.lost or "")
        assert "fleet up" in (lanes.lost or "")
        with pytest.raises(EngineDeadError):
            await lanes.start()


@pytest.mark.parametrize(
    ("fault", "said"), [(ConfigError("not for you"), "not for you"), (ValueError(), "500 Internal")]
)
@awaited
async def test_a_holder_that_answers_with_something_else_is_gone(
    fault: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise fault

    fleet = FakeFleet()
    async with hosted(fleet), attached() as one:
        lanes = one.model("a")
        monkeypatch.setattr(fleet, "status", fail)
        fleet.models["a"].tell()
        await until(lambda: lanes.lost is not None)
        fleet.may_start("a")
        with pytest.raises(EngineDeadError, match=said):
            await lanes.start()


@awaited
async def test_a_start_that_fails_gives_the_reason_of_the_fleet() -> None:
    fleet = FakeFleet()
    fleet.models["a"].lost = "no such model"
    fleet.may_start("a")
    async with hosted(fleet), attached() as one:
        with pytest.raises(EngineDeadError, match="no such model"):
            await one.model("a").start()
        assert one.model("a").lost == "no such model"


@awaited
async def test_turns_of_a_swapped_model_last_as_long_as_they_are_used_by_either_side() -> None:
    fleet = FakeFleet()
    model = fleet.models["a"]
    model.is_swapped = True
    async with hosted(fleet):
        async with attached() as one:
            lanes = one.model("a")
            assert lanes.is_swapped
            fleet.may_start("a")
            await lanes.start()
            assert not lanes.up
            assert not one.model("b").is_swapped
            async with one.model("b").turn() as lane:
                assert lane is None
            waiting = asyncio.create_task(lanes.turn().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            model.is_resident.set()
            async with lanes.turn() as lane, lanes.turn():
                assert lane == "a@0"
                assert model.turns == 2
            await until(lambda: not model.turns)
            turn = lanes.turn()
            await turn.__aenter__()
            assert model.turns == 1
        await until(lambda: not model.turns)


@awaited
async def test_reports_events_and_states_reach_the_other_side() -> None:
    fleet = FakeFleet()
    events: list[tuple[str, dict[str, object]]] = []
    async with hosted(fleet) as host:
        host.note("EVENT_LANE_UP", {"lane": "before the run", "model": "a"})
        fleet.models["b"].up = fleet.models["b"].all
        async with attached(lambda name, fields: events.append((name, dict(fields)))) as one:
            assert {lane.name: lane.state for lane in one.status()} == dict.fromkeys(
                ("a@0", "a@1", "b@2"), LaneState.UP
            )
            one.model("a").report_stuck("a@1", "no reply")
            one.model("b").report_stuck("b@2", "no reply either")
            one.model("b").report_stuck("b@7", "it is not there")
            await until(lambda: bool(fleet.models["a"].stuck and fleet.models["b"].stuck))
            for system in ("Rules: be A.", "Rules: be B.", "Rules: be C.", "", "x"):
                one.model("a").see(system)
            await until(lambda: len(fleet.models["a"].seen) == 2)
            assert sorted(fleet.models["a"].seen) == ["Rules: be ", "Rules: be A."]
            host.note("EVENT_LANE_DEAD", {"lane": "c@3", "model": "c"})
            host.note("EVENT_LANE_DEAD", {"lane": "a@1", "model": "a", "seconds": 1.5, "reason": None})
            await until(lambda: len(events) > 1)
    assert fleet.models["a"].stuck == [("a@1", "no reply")]
    assert fleet.models["b"].stuck == [("b@2", "no reply either")]
    assert events == [
        ("EVENT_LANE_UP", {"lane": "b@2", "model": "b", "place": "place 0", "gpu": "2"}),
        ("EVENT_LANE_DEAD", {"lane": "a@1", "model": "a", "seconds": 1.5, "reason": None}),
    ]


@awaited
async def test_a_drain_waits_for_requests_in_flight_and_can_be_undone() -> None:
    fleet = FakeFleet()
    async with hosted(fleet), attached() as one, FleetClient(read_held(FILE), FILE) as client:
        fleet.may_start("a")
        await one.model("a").start()
        draining = asyncio.create_task(client.post("/drain", lane="a@0"))
        await until(lambda: [lane.name for lane in one.model("a").up] == ["a@1"])
        assert not draining.done()
        fleet.is_idle.set()
        await draining
        assert fleet.lanes["a@0"].state is LaneState.DRAINED
        await client.post("/undrain", lane="a@0")
        for path_, lane, words in (
            ("/undrain", "a@0", "was not drained: it is starting"),
            ("/drain", "c@9", "has no lane 'c@9'; it has a@0, a@1, b@2"),
        ):
            with pytest.raises(ConfigError, match=words):
                await client.post(path_, lane=lane)


@awaited
async def test_nobody_is_answered_without_the_token_from_a_page_or_under_another_name() -> None:
    downs: list[bool] = []
    async with hosted(FakeFleet(), lambda: downs.append(True)):
        control = read_held(FILE).control
        good = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(control) as session:
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer "}, 401),
                ({"Authorization": f"Bearer {TOKEN}x"}, 401),
                ({"Authorization": "Bearer \u00e9"}, 401),
                ({**good, "Host": "evil.example"}, 403),
                ({**good, "Origin": "http://evil.example"}, 403),
                (good, 200),
            ):
                async with session.get("/state", headers=headers) as answer:
                    assert answer.status == status
            for path_, body, status in (
                ("/down", b'{"x": 1}', 400),
                ("/start", b"[" * 5000, 400),
                ("/start", b'{"model": 3}', 400),
                ("/start", b'{"model": "c"}', 400),
                ("/start", io.BytesIO(b"x" * 2_000_000), 413),
                ("/stuck", b'{"model": "a", "lane": "a@9", "why": ""}', 400),
                ("/elsewhere", b"", 404),
            ):
                async with session.post(path_, headers=good, data=body) as answer:
                    assert (path_, answer.status) == (path_, status)
                    assert (await answer.json())["error"]
            async with session.get("/state?after=nan", headers=good) as answer:
                assert answer.status == 400
            assert not downs
            async with session.post("/down", headers=good) as answer:
                assert answer.status == 200
            await until(lambda: bool(downs))


@awaited
async def test_a_fleet_of_another_machine_is_said_to_be_there() -> None:
    async with hosted(FakeFleet()):
        pass
    rewrite(host="gpu-box")
    with pytest.raises(EngineDeadError, match="machine gpu-box"):
        async with attached():
            pass


@awaited
async def test_a_model_is_found_by_what_it_is_and_refused_with_what_differs() -> None:
    async with hosted(FakeFleet()):
        held = read_held(FILE)
        assert held.serving("b", CONFIGS["b"]) == "b"
        assert held.serving("other_name", CONFIGS["b"]) == "b"
        assert held.serving("b", CONFIGS["a"]) == "a"
        assert held.serving("a", CONFIGS["a"].model_copy(update={"max_num_seqs": 3, "lanes": 1})) == "a"
        for name, update, words in (
            ("a", {"engine": "nano"}, 'engine "vllm" where this experiment has "nano"'),
            ("a", {"engine_args": {"z": 1}}, 'engine_args {} where this experiment has {"z": 1}'),
            ("a", {"chat_template": File.at(__file__)}, 'chat_template_sha256 "" where this experiment has "'),
            ("c", {"model": "huge"}, "does not serve 'huge' on 'vllm'; it serves a .small on vllm., b"),
        ):
            with pytest.raises(ConfigError, match=words):
                held.serving(name, CONFIGS["a"].model_copy(update=update))
        assert TOKEN not in repr(held)


@awaited
async def test_a_file_that_describes_no_fleet_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match="no fleet: "):
        read_held(FILE)
    for data in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": "mac_runner.fleet/9"}', b'{"format": []}'):
        write(data)
        with pytest.raises(ConfigError, match=r"fleet\.json"):
            read_held(FILE)
    with pytest.raises(ConfigError, match="is a directory"):
        read_held(Path())
    async with hosted(FakeFleet()):
        rewrite(control="http://example.org:80")
        with pytest.raises(ConfigError, match="not the address"):
            read_held(FILE)
