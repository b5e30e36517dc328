"""A fleet of real processes: started, watched, ended and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil
import pytest

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.errors import EngineDeadError
from mac_runner.fleet import engine_process, supervisor
from mac_runner.fleet.supervisor import CLOSE_S
from mac_runner.fleet.testing import Figures, LaneState, figures_of
from mac_runner.section import File
from tests.fleet.real_fleet import (
    Heard,
    awaited,
    fleet_of,
    lane,
    names_up,
    pid_of,
    plan_of,
    run,
    serving,
    stub_model,
    until,
)
from tests.patience import descendants, wait_for_ends

pytestmark = pytest.mark.ci

FAILS = "import sys; sys.exit('Error: the weights of {model} are torn')"
RENDERS = "sys.exit('Error: ' + open(sys.argv[sys.argv.index('--chat-template') + 1]).read())"


async def figures(url: str) -> Figures:
    """What an engine counts."""
    async with aiohttp.ClientSession() as session, session.get(url.removesuffix("/v1") + "/metrics") as answer:
        return figures_of(await answer.read())


@awaited
async def test_lanes_start_one_of_a_place_at_a_time_and_serve_and_leave_no_process_behind(tmp_path: Path) -> None:
    heard = Heard()
    async with fleet_of(plan_of({"a": stub_model(), "b": stub_model()}, 2), heard, tmp_path) as fleet:
        await asyncio.gather(fleet.model("a").start(), fleet.model("b").start())
        await until(lambda: len(names_up(fleet, "a")) == len(names_up(fleet, "b")) == 2)
        assert [status.state for status in fleet.status()] == [LaneState.UP] * 4
        processes = descendants()
        assert len(processes) == 8

    wait_for_ends(processes)
    for place in (0, 1):
        of_place = [name for name, fields in heard.events if fields["place"] == f"place {place}"]
        assert of_place == ["EVENT_LANE_START", "EVENT_LANE_UP"] * 2
    assert [name for name, _ in heard.events[:2]] == ["EVENT_LANE_START"] * 2
    assert heard.lines == []


@awaited
async def test_killed_lane_is_seen_at_once_and_comes_back_on_its_port(tmp_path: Path) -> None:
    heard = Heard()
    async with serving(tmp_path, places=2, heard=heard) as fleet:
        model = fleet.model("m")
        changes: list[list[str]] = []
        model.on_change(lambda: changes.append(names_up(fleet, "m")))
        before = lane(fleet, "m@0")
        os.kill(pid_of(fleet, "m@0"), signal.SIGKILL)
        await until(lambda: len(changes) == 2)
        after = lane(fleet, "m@0")
        assert changes == [["m@1"], ["m@0", "m@1"]]
        assert (after.port, after.deaths, after.restarts) == (before.port, 1, 1)
        assert after.pid != before.pid
        assert model.lost is None

    assert heard.names("m@0") == ["START", "UP", "DEAD", "RESTART", "UP"]
    assert heard.names("m@1") == ["START", "UP"]
    log = tmp_path / "m@0.log"
    died, back = heard.lines
    assert died.endswith(f"by SIGKILL (log: {log})")
    assert back.endswith("serves again")


@awaited
async def test_lane_that_hangs_is_ended_when_it_is_reported_and_comes_back(tmp_path: Path) -> None:
    heard = Heard()
    async with serving(tmp_path, heard=heard) as fleet:
        pid = pid_of(fleet, "m@0")
        os.kill(pid, signal.SIGSTOP)
        fleet.model("m").report_stuck("m@0", "no reply for 30 s, and none to a canary")
        assert fleet.model("m").up == ()
        await until(lambda: fleet.model("m").up)
        assert lane(fleet, "m@0").pid != pid

    assert heard.names("m@0") == ["START", "UP", "SUSPECT", "DEAD", "RESTART", "UP"]
    assert heard.lines[0].startswith("lane m@0 ended: ")


@awaited
async def test_the_same_start_error_twice_retires_a_lane_with_its_last_error(tmp_path: Path) -> None:
    heard = Heard()
    broken = stub_model(command=(sys.executable, "-c", FAILS, "{port}"))
    async with fleet_of(plan_of({"m": broken}), heard, tmp_path) as fleet:
        with pytest.raises(EngineDeadError, match="Error: the weights"):
            await fleet.model("m").start()
        assert fleet.model("m").all == ()
        assert lane(fleet, "m@0").state is LaneState.RETIRED

    assert heard.names("m@0") == ["START", "DEAD", "RESTART", "DEAD", "RETIRED"]
    assert "status 1: Error: " in heard.lines[-1]


@awaited
async def test_every_start_reads_the_chat_template_that_the_first_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, vllm, logs = tmp_path / "chat.jinja", tmp_path / "vllm", tmp_path / "logs"
    given.write_text("as it was loaded")
    vllm.write_text(f"#!{sys.executable}\nimport sys\n{RENDERS}")
    vllm.chmod(0o700)
    logs.mkdir()
    monkeypatch.setattr(engine_process, "vllm_program", lambda: str(vllm))
    model = FleetModelConfig(model="m", chat_template=File.at(given))
    async with fleet_of(plan_of({"m": model}), Heard(), logs) as fleet:
        given.write_text("as it was edited later")
        with pytest.raises(EngineDeadError):
            await fleet.model("m").start()

    assert (logs / "m@0.log").read_text().split("Error: ")[1:] == ["as it was loaded\n"] * 2


def test_port_that_another_process_has_is_a_start_error_and_not_a_server(tmp_path: Path) -> None:
    async def play(port: int) -> None:
        plan = plan_of({"m": stub_model()})
        plan = replace(plan, lanes=(replace(plan.lanes[0], port=port),))
        async with fleet_of(plan, Heard(), tmp_path) as fleet:
            with pytest.raises(EngineDeadError, match=f"port {port} .* in use"):
                await fleet.model("m").start()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        run(play(taken.getsockname()[1]))


@awaited
async def test_engine_that_never_answers_has_its_time_and_is_ended(tmp_path: Path) -> None:
    silent = stub_model(command=(sys.executable, "-c", "import time; time.sleep(600)", "{port}"))
    plan = plan_of({"m": silent}, probe={"start_s": 0.5}, restart={"budget": 0})
    async with fleet_of(plan, Heard(), tmp_path) as fleet:
        with pytest.raises(EngineDeadError, match=r"not start in 0\.5"):
            await fleet.model("m").start()


@awaited
async def test_start_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    async with fleet_of(plan_of({"m": stub_model("--start-s", "600")}, 2), Heard(), tmp_path) as fleet:
        starting = asyncio.create_task(fleet.model("m").start())
        await until(lambda: len(descendants()) == 4)
        processes = descendants()
        starting.cancel()

    wait_for_ends(processes)


@awaited
async def test_engines_that_ignore_the_end_are_killed_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within ten seconds, where the machine is not too busy for it."""
    assert engine_process.STOP_GRACE_S + engine_process.GUARDIAN_GRACE_S < CLOSE_S < 10
    monkeypatch.setattr(engine_process, "STOP_GRACE_S", 0.2)
    async with serving(tmp_path, places=2) as fleet:
        for name in ("m@0", "m@1"):
            os.kill(pid_of(fleet, name), signal.SIGSTOP)
        processes = descendants()
        await fleet.close()
        assert descendants() == []

    wait_for_ends(processes)


@awaited
async def test_drained_lane_ends_after_its_requests_and_comes_back_when_asked(tmp_path: Path) -> None:
    heard = Heard()
    async with serving(tmp_path, places=2, heard=heard) as fleet:
        await fleet.drain("m@1")
        assert names_up(fleet, "m") == ["m@0"]
        assert (lane(fleet, "m@1").pid, lane(fleet, "m@1").deaths) == (None, 0)
        fleet.ask_up("m@1")
        await until(lambda: len(names_up(fleet, "m")) == 2)

    assert heard.names("m@1") == ["START", "UP", "DRAIN", "START", "UP"]
    assert heard.lines == []


@awaited
async def test_request_in_flight_is_answered_before_a_drained_lane_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = 0, engine_process.LaneEngine.look

    async def counted(engine: engine_process.LaneEngine) -> None:
        nonlocal looks
        looks += 1
        await look(engine)

    async def ask(url: str) -> int:
        body = {"model": "stub", "messages": [{"role": "user", "content": "Hello."}]}
        async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=body) as answer:
            return answer.status

    async with serving(tmp_path) as fleet:
        pid, url = pid_of(fleet, "m@0"), fleet.model("m").up[0].url
        os.kill(pid, signal.SIGUSR1)
        await until(lambda: (tmp_path / "m@0.log").read_text().endswith("wedged\n"))
        asking = asyncio.create_task(ask(url))
        while not (await figures(url)).in_flight:
            assert not asking.done()
        monkeypatch.setattr(engine_process.LaneEngine, "look", counted)
        draining = asyncio.create_task(fleet.drain("m@0"))
        # More looks than a lane that is dry is given, even if some are of the usual round.
        await until(lambda: looks > 3 * supervisor.DRY_LOOKS or draining.done())
        assert lane(fleet, "m@0").state is LaneState.DRAINING
        os.kill(pid, signal.SIGUSR1)
        await draining
        assert await asking == 200


@awaited
async def test_engine_that_comes_back_has_read_what_prompts_begin_with(tmp_path: Path) -> None:
    async with serving(tmp_path, "--cache-tokens", "10000") as fleet:
        model = fleet.model("m")
        read = [(await figures(model.up[0].url)).tokens]
        for name in ("Ann", "Bea"):
            model.see("These are the rules. " * 400 + name)
        pid = pid_of(fleet, "m@0")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: model.up and lane(fleet, "m@0").pid != pid)
        read.append((await figures(model.up[0].url)).tokens)
        cold, warm = [tokens.read for tokens in read if tokens is not None]

    assert 0 < cold < 20
    assert warm > 2000


def test_a_bug_in_the_fleet_ends_what_opened_it_and_every_engine(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path) as fleet:
            processes.extend(descendants())
            fleet.model("m").on_change(lambda: 1 / 0)  # type: ignore[arg-type]
            processes[-1].kill()
            await asyncio.Event().wait()

    processes: list[psutil.Process] = []
    with pytest.raises(ZeroDivisionError):
        run(play())

    wait_for_ends(processes)


@awaited
async def test_status_has_the_counters_of_engines_and_the_log(tmp_path: Path) -> None:
    async with serving(tmp_path) as fleet:
        await until(lambda: lane(fleet, "m@0").tokens_per_s is not None)
        status = lane(fleet, "m@0")
        assert (status.state, status.slots, status.in_flight) == (LaneState.UP, 2, 0)
        assert status.log == str(tmp_path / "m@0.log")
        port = status.port

    assert (tmp_path / "m@0.log").read_text() == f"{port}\n"
