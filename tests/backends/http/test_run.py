"""Whole runs over servers that fail: nothing is lost, nothing happens twice, and others absorb what one leaves."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from mac_runner.backends.http import data_plane, endpoints
from mac_runner.errors import EngineDeadError
from mac_runner.scheduler import RunResult
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonValue, RecordedReply, Task
from tests.backends.asking import HELD_S, KEY, WIRES, Script, Wire, backend_of, once_there
from tests.sim.behaviour import Behaviour, Received, Reset, Say, echo, failure, flood
from tests.sim.held_time import held
from tests.sim.openai_run import backend_for, play
from tests.sim.openai_server import OpenaiServer, listening
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import tasks

WORK = tasks(12, models=1)

FEW_ATTEMPTS = RetryConfig(max_attempts=3, backoff_s=0.01, backoff_s_max=0.05)


class Played(NamedTuple):
    """All of WORK, played over one server in this process."""

    result: RunResult
    recorder: MemoryRecorder
    server: OpenaiServer


def played(script: Script, recorder: MemoryRecorder | None = None, wire: Wire = WIRES["openai"]) -> Played:
    recorder, server = recorder or MemoryRecorder(), wire.serve(script)

    async def playing() -> Played:
        async with server:
            return Played(await play(backend_of(server, key=KEY), WORK, recorder), recorder, server)

    return asyncio.run(playing())


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, JsonValue]:
    """The transcripts of WORK when nothing goes wrong."""
    return played(echo).recorder.results()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests as short as a test wants them."""
    for name in ("CANARY_S_MAX", "ENDPOINT_REST_S", "ENDPOINT_REST_S_MAX"):
        monkeypatch.setattr(endpoints, name, 0.05)


class Striking(MemoryRecorder):
    """Sends a signal to a process at the n-th reply."""

    def __init__(self, pid: int, number: int, after: int) -> None:
        super().__init__()
        self.pid, self.number, self.left = pid, number, after

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        super().reply(task, recorded)
        self.left -= 1
        if self.left == 0:
            os.kill(self.pid, self.number)


@pytest.mark.ci
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_server_that_dies_or_hangs_loses_nothing(
    number: int, undisturbed: dict[str, JsonValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane, "CANARY_S_MAX", 1.5)
    command = [sys.executable, "-m", "tests.sim.openai_server", "--latency-ms=20"]
    with listening(command) as (process, url), listening(command) as (_, other):
        recorder = Striking(process.pid, number, after=40)
        result = asyncio.run(play(backend_for(url, other, settings={"timeout_s": 0.5}), WORK, recorder))

    assert (result.finished, result.failed, result.interrupted) == (len(WORK), 0, False)
    assert recorder.results() == undisturbed
    faults = [fault for replies in recorder.replies.values() for one in replies for fault in one.reply.timing.faults]
    assert faults


@pytest.mark.ci
@pytest.mark.usefixtures("hurried")
def test_work_done_but_not_told_is_one_turn(undisturbed: dict[str, JsonValue]) -> None:
    """Every request is answered by a broken connection first, when its work is done."""
    seen: Counter[str] = Counter()

    def script(received: Received) -> Behaviour:
        if received.is_canary:
            return Say()
        name = received.headers["x-request-id"]
        seen[name] += 1
        return Reset() if seen[name] < 3 else echo(received)

    result, recorder, server = played(script)

    assert result.failed == 0
    assert recorder.results() == undisturbed
    bodies: dict[str, set[bytes]] = {}
    for received in server.received:
        bodies.setdefault(received.headers["x-request-id"], set()).add(received.body)
    del bodies["canary"]
    assert {len(sent) for sent in bodies.values()} == {1}
    turns = [(task_id, one.turn_key) for task_id, replies in recorder.replies.items() for one in replies]
    assert sorted(f"{task_id}/{key}" for task_id, key in turns) == sorted(bodies)


@pytest.mark.ci
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_server_that_fails_at_everything_at_once_draws_nobody_in(
    status: int, undisturbed: dict[str, JsonValue]
) -> None:
    """What fails quickly always has the least in flight; its conversations go on at the other server all the same."""
    bad = OpenaiServer(script=lambda received: failure(status, "no", headers=(("Retry-After", "60"),)))
    good, recorder = OpenaiServer(script=echo, slots=8, latency_s=0.005), MemoryRecorder()

    async def program() -> RunResult:
        async with bad, good:
            return await play(backend_for(bad.url, good.url), WORK, recorder, retry=FEW_ATTEMPTS)

    assert asyncio.run(program()).failed == 0
    assert recorder.results() == undisturbed


def test_wrong_key_in_mid_run_ends_it_with_everything_kept(wire: Wire) -> None:
    def script(received: Received) -> Behaviour:
        return echo(received) if received.number < 40 else wire.fail(401, "expired")

    recorder = MemoryRecorder()
    with pytest.raises(EngineDeadError, match="status 401: expired"):
        played(script, recorder, wire)

    assert sum(map(len, recorder.replies.values())) == 40
    assert {transcript["failure"] for transcript in recorder.transcripts.values()} <= {None}


def test_server_of_two_that_dies_in_mid_run_loses_nothing(wire: Wire) -> None:
    """Its conversations go on at the other one, with the replies that they would have had."""
    dying: list[asyncio.Task[None]] = []

    def script(received: Received) -> Behaviour:
        if servers[0].requests == 20 and not dying:
            dying.append(asyncio.get_running_loop().create_task(servers[0].die()))
        return echo(received)

    async def playing(recorder: MemoryRecorder, count: int) -> RunResult:
        async with AsyncExitStack() as stack:
            for server in servers[:count]:
                await stack.enter_async_context(server)
            return await play(backend_of(*servers[:count], key=KEY), WORK, recorder)

    servers = [wire.serve(echo)]
    whole, halved = MemoryRecorder(), MemoryRecorder()
    asyncio.run(playing(whole, 1))
    servers = [wire.serve(script), wire.serve(script)]
    result = asyncio.run(playing(halved, 2))

    assert dying
    assert (result.finished, result.failed, result.interrupted) == (len(WORK), 0, False)
    assert halved.results() == whole.results()


def test_endless_body_is_cut_off_in_memory() -> None:
    def script(received: Received) -> Behaviour:
        return echo(received) if received.number else flood()

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = played(script).result
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert result.failed == 0
    assert after_kib - before_kib < 32 * 1024


@held
async def test_no_more_is_in_flight_than_the_backend_is_allowed() -> None:
    """Time stands still until there are as many: a machine that is slow to send them sends them all the same."""
    server = OpenaiServer(script=once_there(5, echo), slots=100, latency_s=HELD_S)
    async with server:
        await play(backend_for(server.url, settings={"max_in_flight": 5}), WORK, MemoryRecorder())

    assert server.account.in_use_max == 5
    assert server.account.waited_s == 0
