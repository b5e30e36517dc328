"""What the data plane does with many servers: overflow, comings and goings, suspects, deaths; in simulated time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.backends.openai.endpoints import Endpoint, Endpoints, Onward
from mac_runner.errors import TransientBackendError
from mac_runner.types import Destination, Message, Prompt, Request
from tests.backends.openai.simulated import Field, SimulatedServer, in_simulated_time
from tests.sim.engine_stub import PrefixCache
from tests.sim.requests import request

LATENCY_S = 0.4


def turn_of(conversation: str, place: int, *, is_suspect: bool = False) -> Request:
    """A request with the rules, and all that was said in its conversation before."""
    words = [f"{conversation} said {number} " + "and so on " * 40 for number in range(place)]
    messages = (Message(role="system", content="the rules " * 300), Message(role="user", content=" ".join(words)))
    asked = request(prompt=Prompt(messages=messages), conversation=conversation)
    return replace(asked, turn=replace(asked.turn, round=place), is_suspect=is_suspect)


async def play(field: Field, *, workers: int, turns: int, random: Random) -> list[float]:
    """So many conversations one after the other in each of `workers` tasks: how long each request took."""
    took_s: list[float] = []

    async def one(worker: int) -> None:
        for number in range(3):
            for place in range(turns):
                since_s = field.now_s
                await field.plane.generate(turn_of(f"c-{worker}-{number}", place))
                took_s.append(field.now_s - since_s)
                await asyncio.sleep(random.random() * 0.2 if number else 0.0)

    await asyncio.gather(*(one(worker) for worker in range(workers)))
    return took_s


def test_saturated_servers_keep_nobody_waiting_while_one_of_them_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 servers of 8 slots, 64 in flight: the p95 is within 1.1 of the bare latency, and prefixes are found."""
    hits: dict[bool, float] = {}
    p95_s: dict[bool, float] = {}

    async def program(field: Field) -> list[float]:
        took_s = await play(field, workers=64, turns=8, random=Random(0))
        counted = [(server.cached_tokens, server.prompt_tokens) for server in field.servers]
        hits[is_ours] = sum(cached for cached, _ in counted) / sum(prompt for _, prompt in counted)
        return sorted(took_s)

    for is_ours in (True, False):
        with monkeypatch.context() as patch:
            if not is_ours:  # Homes alone, however long the line there is.
                patch.setattr(Endpoints, "peek", _sticky)
            took_s = in_simulated_time(program, patch, cache_tokens=1_000_000, latency_s=LATENCY_S)
        p95_s[is_ours] = took_s[int(len(took_s) * 0.95)]

    assert p95_s[True] <= 1.1 * LATENCY_S < p95_s[False]
    assert hits[True] > hits[False] - 0.03
    assert hits[True] > 0.5


def _sticky(self: Endpoints, conversation: str, request_id: str = "", now_s: float = 0.0) -> Endpoint | None:
    home = self._homes.get(conversation)
    return home if home is not None and home.is_open else self._least(self._open)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), servers=st.integers(2, 8), slots=st.integers(1, 8), load=st.floats(0.5, 1.0))
def test_requests_leave_home_only_for_a_free_slot_and_prefixes_are_still_found(
    seed: int, servers: int, slots: int, load: float
) -> None:
    """A model of servers with caches; hits stay within 3 points of those of homes alone at any load."""
    random = Random(seed)
    endpoints = Endpoints([f"http://{number}/v1" for number in range(servers)], in_flight_max=servers * slots)
    conversations = [f"c-{number}" for number in range(max(2, int(servers * slots * load)))]
    places: Counter[str] = Counter()
    caches: dict[object, PrefixCache] = {}
    homes: dict[str, PrefixCache] = {}
    cached = pure = prompt = 0
    under_way: list[Endpoint] = []
    for _ in range(12 * servers * slots):
        while len(under_way) >= len(conversations) or (under_way and random.random() < 0.3):
            under_way.pop(random.randrange(len(under_way))).in_flight -= 1
        conversation = random.choice(conversations)
        home = endpoints._homes.get(conversation)
        endpoint = endpoints.choose(conversation)
        assert endpoint is not None
        if home is not None and home.in_flight < slots:
            assert endpoint is home
        elif home is not None and endpoint is not home:
            assert endpoint.in_flight < slots
            assert endpoints._homes[conversation] is home
        endpoint.in_flight += 1
        under_way.append(endpoint)
        places[conversation] += 1
        text = "rules " * 200 + "".join(f"{conversation}:{place:058d}" for place in range(places[conversation] * 8))
        prompt += len(text) // 4
        cached += caches.setdefault(endpoint, PrefixCache(10_000_000)).take(text)
        pure += homes.setdefault(conversation, PrefixCache(10_000_000)).take(text)
    assert cached / prompt > 0.3
    if slots >= 4:  # With one slot, a second request of a conversation in flight cannot be at home.
        assert cached / prompt > pure / prompt - 0.1
    assert all(0 <= endpoint.in_flight <= slots for endpoint in endpoints.all)


def test_server_that_dies_costs_its_requests_no_more_than_another_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(field: Field) -> None:
        await asyncio.gather(*(field.plane.generate(request(conversation=f"c-{one}")) for one in range(16)))

        async def ask(name: str) -> tuple[float, int]:
            since_s, faults = field.now_s, 0
            while True:
                try:
                    await field.plane.generate(request(conversation=name))
                except TransientBackendError as fault:
                    faults += 1 if fault.goes_elsewhere and fault.is_engine_death else 100
                else:
                    return field.now_s - since_s, faults

        asking = asyncio.gather(*(ask(f"c-{one}") for one in range(16)))
        await asyncio.sleep(0.2)
        field.servers[0].change(is_dead=True)
        found = await asking
        assert sorted(faults for _, faults in found) == [0] * 8 + [1] * 8
        assert max(took_s for took_s, _ in found) <= 0.2 + 2 * LATENCY_S + 0.01

    in_simulated_time(program, monkeypatch, servers=2, max_in_flight=32, slots=16)


def test_request_that_every_server_has_failed_is_sent_after_a_pause() -> None:
    endpoints = Endpoints([f"http://{name}/v1" for name in "abc"])
    ways = []
    for _ in range(5):
        endpoint = endpoints.choose("x", "x/1")
        assert endpoint is not None
        ways.append((endpoint.url[7], endpoints.leave("x", endpoint, 0.0, "x/1")))

    assert sorted(url for url, _ in ways[:3]) == ["a", "b", "c"]
    assert [way for _, way in ways] == [Onward.FRESH, Onward.FRESH, *[Onward.ELSEWHERE] * 3]
    endpoints.mark_done("x/1")
    assert endpoints.leave("x", endpoint, 0.0, "x/1") is Onward.FRESH


def test_servers_come_go_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reported down gets nothing, and no canary lifts it; one reported up is up at once."""

    async def program(field: Field) -> None:
        plane = field.plane
        first, second, third = (f"{server.url}/v1" for server in field.servers)
        plane.remove(third)
        plane.report_down(first, "drained")
        await ask(field, 8)
        plane.add(third, slots=2, lane="m@2", gpu="2")
        await asyncio.sleep(1000)
        await ask(field, 10)
        assert not field.servers[0].served
        assert plane.endpoints.at(third).slots == 2
        assert field.servers[2].together_max <= 2
        where = {plane.destination(request(conversation=f"d-{one}")) for one in range(3)}
        assert where == {Destination(server=third, lane="m@2", gpu="2")}
        plane.report_down(second, "gone")
        plane.report_up(first)
        reply = await plane.generate(request(conversation="e-0"))
        assert (reply.timing.server, reply.timing.lane) in [(first, None), (third, "m@2")]
        plane.remove(second)
        await ask(field, 8)
        assert field.servers[0].served
        assert sum(server.canaries for server in field.servers) == 0
        plane.remove(first)
        plane.remove(third)
        with pytest.raises(TransientBackendError, match="no server now") as caught:
            await plane.generate(request())
        assert caught.value.is_unreachable

    async def ask(field: Field, count: int) -> None:
        await asyncio.gather(*(field.plane.generate(request(conversation=f"c-{one}")) for one in range(count)))

    in_simulated_time(program, monkeypatch, servers=3, max_in_flight=16)


def test_late_reply_does_not_bring_back_a_server_that_was_reported_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(field: Field) -> None:
        url = f"{field.servers[0].url}/v1"
        asked = asyncio.ensure_future(field.plane.generate(request()))
        await asyncio.sleep(0.1)
        field.plane.report_down(url, "drained")
        assert (await asked).text
        assert not field.plane.endpoints.at(url).is_up
        with pytest.raises(TransientBackendError, match="drained"):
            await field.plane.generate(request())
        field.plane.report_up(url)
        assert (await field.plane.generate(request())).text

    in_simulated_time(program, monkeypatch, servers=1)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_suspect_is_served_alone_and_others_go_on(servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two suspects among 60 requests: each alone on its server, all answered, and no server stays reserved."""

    async def program(field: Field) -> None:
        assert field.plane.isolates == (servers > 1)
        names = [f"c-{one}" for one in range(60)]

        async def ask(number: int) -> None:
            await asyncio.sleep(number * 0.03)
            is_suspect = number in (20, 21)
            asked = turn_of(names[number], 1, is_suspect=is_suspect)
            waiting = asyncio.ensure_future(field.plane.generate(asked))
            while is_suspect and not waiting.done():
                serving = [one for one in field.servers if asked.request_id in one.in_service]
                assert all(len(one.in_service) == 1 for one in serving)
                if serving and servers == 3:
                    others = [len(one.in_service) for one in field.servers if one not in serving]
                    busy.append(max(others))
                await asyncio.sleep(0.01)
            assert (await waiting).text

        busy: list[int] = []
        await asyncio.gather(*(ask(number) for number in range(60)))
        assert servers < 3 or max(busy) > 1
        assert all(endpoint.is_open for endpoint in field.plane.endpoints.all)

    in_simulated_time(program, monkeypatch, servers=servers, max_in_flight=8 * servers)


@pytest.mark.parametrize("end", ["death", "cancelled while it drains", "cancelled while it is served"])
def test_reservation_ends_with_its_suspect_however_that_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(field: Field) -> None:
        others = [asyncio.ensure_future(field.plane.generate(request(conversation=f"c-{one}"))) for one in range(4)]
        await asyncio.sleep(0.01)
        suspect = asyncio.ensure_future(field.plane.generate(turn_of("s", 1, is_suspect=True)))
        await asyncio.sleep(0.1 if end == "cancelled while it drains" else LATENCY_S + 0.1)
        reserved = [one for one in field.plane.endpoints.all if one.reserved_for]
        assert len(reserved) == 1
        if end == "death":
            _server_of(field, reserved[0]).change(is_dead=True)
            with pytest.raises(TransientBackendError) as caught:
                await suspect
            assert caught.value.is_engine_death
        else:
            suspect.cancel()
            await asyncio.gather(suspect, return_exceptions=True)
        await asyncio.gather(*others)
        assert not [one for one in field.plane.endpoints.all if one.reserved_for]
        assert (await field.plane.generate(request())).text

    in_simulated_time(program, monkeypatch, servers=2)


def _server_of(field: Field, endpoint: Endpoint) -> SimulatedServer:
    return next(server for server in field.servers if endpoint.url.startswith(server.url + "/"))


def test_conversations_waiting_for_the_only_server_that_is_up_get_it_after_the_suspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program(field: Field) -> None:
        suspect = asyncio.ensure_future(field.plane.generate(turn_of("s", 1, is_suspect=True)))
        await asyncio.sleep(0.1)
        others = [field.plane.generate(request(conversation=f"c-{one}")) for one in range(4)]
        await asyncio.gather(suspect, *others)
        assert field.servers[0].served[0].startswith("s/")

    in_simulated_time(program, monkeypatch, servers=1)
