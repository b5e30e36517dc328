"""Whatever a server does, a run ends orderly, tells no key, and is whole once the server is well again."""

from __future__ import annotations

import asyncio
import re

import pytest
from aiohttp.client_proto import ResponseHandler

from mac_runner.types import Reply
from tests.attacks.conftest import Draw
from tests.attacks.hostile_run import CASES
from tests.attacks.hostile_server import Schedule
from tests.attacks.modes import MODES, http
from tests.backends.asking import up
from tests.sim.behaviour import Raw, Received, Say, completion
from tests.sim.held_time import held, move
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

EVERY = 384
"""Of the cases of one mode alone, one in so many is played on every change, and the rest at night."""
BY_DAY = [number for number, case in enumerate(CASES) if case.schedule is Schedule.IN_TURN or number % EVERY == 5]


@pytest.mark.ci
@pytest.mark.parametrize("part", range(2))
def test_run_against_a_hostile_server_ends_orderly_and_whole(part: int, draw: Draw) -> None:
    draw(
        "hostile",
        BY_DAY[part::2],
        lambda came: f"{sum(int(re.findall(r'([0-9]+) hits', each)[0]) for each in came)} hits",
    )


def test_every_mode_is_played_by_day() -> None:
    assert len(MODES) >= 46
    assert {name for seed in BY_DAY for name in CASES[seed].names} == set(MODES)


@pytest.mark.ci
@held
async def test_answer_that_came_to_an_idle_connection_is_given_to_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that speaks out of turn would otherwise answer each request with the reply to another."""
    replies: list[Reply] = []
    stray = http(b'{"choices": [{"message": {"content": "stray"}, "finish_reason": "stop"}]}')
    has_come = asyncio.Event()
    take = ResponseHandler.data_received

    def noting(connection: ResponseHandler, data: bytes) -> None:
        take(connection, data)
        if stray in data:
            has_come.set()

    monkeypatch.setattr(ResponseHandler, "data_received", noting)

    def script(received: Received) -> Raw:
        return Raw((http(completion(Say(f"reply {received.number}"), received)), stray), interval_s=1.0)

    async with up(OpenaiServer(script=script)) as backend:
        for number in range(3):
            has_come.clear()
            replies.append(await backend.generate(request(conversation=f"task {number}")))
            move(1.0)
            await has_come.wait()  # While nothing is on its way.

    assert [reply.text for reply in replies] == ["reply 0", "reply 1", "reply 2"]
