"""Hostile servers, altered files and secrets, drawn by chance: an orderly end, no word of a library, nothing told."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from aiohttp.client_proto import ResponseHandler

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue, Reply
from tests.attacks.canary import leaked_in, leaks
from tests.attacks.conftest import Draw, Tally
from tests.attacks.hostile_run import CASES
from tests.attacks.hostile_server import Schedule
from tests.attacks.invocation import mac_run
from tests.attacks.modes import MODES, http
from tests.backends.asking import up
from tests.cli.lab import discussion
from tests.faults.tier import SCALE, step_of
from tests.kit import written
from tests.sim.behaviour import Behaviour, Raw, Received, Say, completion, failure
from tests.sim.held_time import held, move
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

EVERY = 384
"""Of the cases of one mode alone, one in so many is played on every change, and the rest at night."""

in_halves = pytest.mark.parametrize("part", range(2))
BY_DAY = [
    number
    for number, case in enumerate(CASES)
    if case.schedule is Schedule.IN_TURN or number % (step := step_of(EVERY)) == 5 % step
]


@pytest.mark.ci
@in_halves
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


@pytest.mark.ci
@in_halves
def test_altered_experiment_is_taken_or_refused_by_name(part: int, draw: Draw) -> None:
    """With its place, and nothing is written."""
    draw("mutated-file", range(part, 100 * SCALE, 2))


@pytest.mark.ci
@in_halves
def test_damaged_file_is_reported_or_mended_and_changes_no_result(part: int, draw: Draw) -> None:
    draw("mutated-run", range(part, 8 * SCALE, 2), lambda came: Counter(each.rpartition(": ")[2] for each in came))


@pytest.mark.ci
def test_altered_transcript_is_found_marked_or_refused_by_every_verb(draw: Draw) -> None:
    draw("altered-transcript", range(6 * SCALE), lambda came: Counter(each.rpartition(": ")[2] for each in came))


@pytest.mark.ci
def test_address_with_a_secret_comes_out_nowhere(draw: Draw) -> None:
    draw("address", range(24 * SCALE), lambda came: f"{len({*came})} places")


CONVERSATIONS = 40 * SCALE
KEY = "xk-Rw4Ms7Lc2Hn9Ek5Pd8Vt"
_MARK = re.compile(r"mark(\d+)mark")


@pytest.mark.ci
def test_no_prompt_of_a_seat_holds_what_it_may_not_know(draw: Draw) -> None:
    draw("canary", range(1_000, 1_000 + 30 * SCALE), lambda came: f"{sum(came)} prompts searched")


class Marking:
    """Says something of its own each time, and notes to which conversation; repeats the key in its errors."""

    def __init__(self) -> None:
        self.dice = Random(7)
        self.said: dict[str, str] = {}

    def __call__(self, received: Received) -> Behaviour:
        if received.is_canary:
            return Say()
        if self.dice.random() < 0.2:
            return failure(self.dice.choice([429, 500, 503]), json.dumps(received.headers))
        number = str(len(self.said))
        self.said[number] = conversation_of(received)
        return Say(f"mark{number}mark")


def conversation_of(received: Received) -> str:
    return received.headers["x-request-id"].split("/")[0]


@pytest.mark.ci
def test_words_of_a_conversation_come_into_no_other_and_the_key_into_nothing(tmp_path: Path, tally: Tally) -> None:
    marking = Marking()
    with in_a_thread(OpenaiServer(script=marking)) as server:
        config: JsonObject = {"model": "stub", "base_urls": [server.url], "api_key_env": "CANARY_KEY"}
        model: JsonObject = {"backend": "openai", "openai_config": {**config, "max_in_flight": 16}}
        retry: JsonObject = {"backoff_s": 0.01, "backoff_s_max": 0.05, "max_attempts": 20}
        agents: JsonValue = [{"agent_id": name, "role": "participant", "model": "m"} for name in ("a", "b", "c")]
        talk = discussion(model, conversations=CONVERSATIONS, max_rounds=4, retry_config=retry)
        written(tmp_path / "talk.yaml", talk | {"agent_definitions": agents})
        ended = mac_run("talk.yaml", directory=tmp_path, environ={"CANARY_KEY": KEY})
        prompts = [received for received in server.received if not received.is_canary]

    assert ended.code == Exit.OK, ended
    strange = [
        f"{conversation_of(received)} reads what was said in {marking.said[mark]}"
        for received in prompts
        for mark in _MARK.findall(received.body.decode())
        if marking.said[mark] != conversation_of(received)
    ]
    read = {mark for received in prompts for mark in _MARK.findall(received.body.decode())}
    places = {f"prompt {number}": received.body for number, received in enumerate(prompts)}
    found = leaks(tmp_path, {**places, "what was printed": (ended.out + ended.err).encode()}, KEY)

    tally(f"canaries: {len(prompts)} prompts of {CONVERSATIONS} conversations", len(found))
    assert not strange
    assert not found
    # Nothing was found, and not because nothing was there to be found.
    assert len(read) > CONVERSATIONS
    assert {received.headers["authorization"] for received in prompts} == {f"Bearer {KEY}"}


def test_search_finds_a_part_of_a_secret_in_either_case_and_no_short_one() -> None:
    assert leaked_in(b"it was " + KEY[3:12].swapcase().encode() + b".", KEY) == KEY[3:12].lower()
    assert leaked_in(f"{KEY[:4]} {KEY[4:8]}".encode(), KEY) == ""
