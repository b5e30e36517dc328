"""What the data plane does with many servers: overflow, comings and goings, suspects, deaths, hangs."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mac_runner.backends import Backend
from mac_runner.backends.http import data_plane
from mac_runner.backends.testing import (
    Answer,
    Endpoint,
    Endpoints,
    Looks,
    ServerWeights,
    Verdict,
    figures_of,
    verdict,
)
from mac_runner.errors import TransientBackendError, WeightMismatchError, WeightUpdateError
from mac_runner.types import Destination, JsonObject, Message, Prompt, Reply, Request
from mac_runner.weights import WeightUpdate
from tests.backends.asking import found, started
from tests.backends.http.simulated import DIALECTS, Field, SimulatedServer, plane_of
from tests.patience import LIMIT_S
from tests.sim.engine_stub import running
from tests.sim.held_time import real, simulated
from tests.sim.openai_run import backend_for
from tests.sim.requests import request
from tests.sim.shuffled import simulate

LATENCY_S = 0.4
JITTER = 0.5


def turn_of(conversation: str, place: int, *, is_suspect: bool = False) -> Request:
    """A request with the rules, and all that was said in its conversation before."""
    words = [f"{conversation} said {number} " + "and so on " * 40 for number in range(place)]
    messages = (Message(role="system", content="the rules " * 300), Message(role="user", content=" ".join(words)))
    asked = request(prompt=Prompt(messages=messages), conversation=conversation)
    return replace(asked, turn=structs.replace(asked.turn, round=place), is_suspect=is_suspect)


class Figures(NamedTuple):
    """Of one play: the share of prompt tokens that were cached, requests a second, the p95 of sending to reply."""

    hits: float
    per_s: float
    p95_s: float


def play(*, is_sticky: bool, servers: int = 8, slots: int = 8, turns: int = 6) -> Figures:
    """Two conversations and a half for each slot, over saturated servers; with homes alone, or as the data plane is."""
    in_flight = servers * slots

    async def program() -> Figures:
        async with plane_of(
            servers=servers,
            slots=slots,
            max_in_flight=in_flight,
            cache_tokens=1_000_000,
            latency_s=LATENCY_S,
            jitter=JITTER,
        ) as field:
            departing = asyncio.Semaphore(in_flight + (0 if is_sticky else field.plane.endpoints.lookahead))
            took_s: list[float] = []

            async def one(conversation: str) -> None:
                for place in range(turns):
                    async with departing:
                        since_s = field.now_s
                        reply = await field.plane.generate(turn_of(conversation, place))
                        took_s.append(field.now_s - since_s - reply.timing.queue_s)

            since_s = field.now_s
            await asyncio.gather(*(one(f"c-{number}") for number in range(in_flight * 5 // 2)))
            cached = sum(server.cached_tokens for server in field.servers)
            return Figures(
                hits=cached / sum(server.prompt_tokens for server in field.servers),
                per_s=len(took_s) / (field.now_s - since_s),
                p95_s=sorted(took_s)[int(len(took_s) * 0.95)],
            )

    with pytest.MonkeyPatch.context() as patch:
        if is_sticky:
            patch.setattr(Endpoints, "peek", _at_home)
            patch.setattr(Endpoint, "has_free_slot", True)
        return simulate(program)


def _at_home(self: Endpoints, conversation: str, _request_id: str = "", _now_s: float = 0.0) -> Endpoint | None:
    home = self._homes.get(conversation)
    return home if home is not None and home.is_open else self._least(self._open)


def test_saturated_servers_have_no_line_and_prefixes_are_found() -> None:
    """8 servers of 8 slots: the p95 is within 1.1 of the bare latency's, hits within 3 points of those of homes."""
    bare_p95_s = LATENCY_S * (1 + 0.9 * JITTER)
    ours, homes = play(is_sticky=False), play(is_sticky=True)

    assert ours.p95_s <= 1.1 * bare_p95_s
    assert ours.p95_s < homes.p95_s
    assert ours.hits > homes.hits - 0.03
    assert ours.hits > 0.5
    assert ours.per_s > 1.05 * homes.per_s


@pytest.mark.parametrize(("servers", "slots"), [(2, 2), (2, 8), (3, 4), (5, 3), (8, 2)])
def test_prefixes_are_found_whatever_the_number_of_servers_and_slots(servers: int, slots: int) -> None:
    ours = play(is_sticky=False, servers=servers, slots=slots)
    homes = play(is_sticky=True, servers=servers, slots=slots)

    assert ours.hits > homes.hits - 0.03
    assert ours.per_s > 0.99 * homes.per_s


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), servers=st.integers(2, 8), slots=st.integers(1, 8))
def test_requests_leave_home_only_for_a_free_slot_elsewhere(seed: int, servers: int, slots: int) -> None:
    random = Random(seed)
    endpoints = Endpoints([f"http://{number}/v1" for number in range(servers)], in_flight_max=servers * slots)
    under_way: list[Endpoint] = []
    for _ in range(300):
        while len(under_way) >= servers * slots or (under_way and random.random() < 0.3):
            under_way.pop(random.randrange(len(under_way))).in_flight -= 1
        conversation = f"c-{random.randrange(2 * servers * slots)}"
        home = endpoints.home_of(conversation)
        endpoint = endpoints.choose(conversation)
        assert endpoint is not None
        assert endpoint.in_flight < slots
        if home is not None:
            assert endpoint is home or home.in_flight == slots
            assert endpoints.home_of(conversation) is home
        endpoint.in_flight += 1
        under_way.append(endpoint)


@simulated
async def test_server_that_dies_costs_its_requests_no_more_than_another_sending() -> None:
    async with plane_of(servers=2, max_in_flight=16) as field:
        await field.crowd(16)

        async def ask(name: str) -> tuple[float, int]:
            since_s, faults = field.now_s, 0
            while True:
                try:
                    await field.plane.generate(request(conversation=name))
                except TransientBackendError as fault:
                    faults += 1 if fault.goes_elsewhere and fault.is_engine_death else 100
                else:
                    return field.now_s - since_s, faults

        asking = asyncio.gather(*(ask(f"c-{one}") for one in range(16 + 16)))
        await asyncio.sleep(0.2)
        field.servers[0].change(is_dead=True)
        found = await asking
        # Those that wait in line do not go to the server that has died.
        assert sorted(faults for _, faults in found) == [0] * 24 + [1] * 8
        assert max(took_s for took_s, _ in found) <= 0.2 + 4 * LATENCY_S + 0.01


@simulated
async def test_slot_of_a_request_that_ends_as_it_gets_it_goes_to_the_next_one() -> None:
    async with plane_of(servers=1, slots=1, max_in_flight=1) as field:

        async def first() -> None:
            await field.plane.generate(turn_of("a", 0))
            second.cancel()  # In the step in which the slot has gone to it.

        leading = asyncio.create_task(first())
        await asyncio.sleep(0)
        second, third = (asyncio.create_task(field.plane.generate(turn_of(name, 0))) for name in "bc")
        await asyncio.wait({second, third}, timeout=60)
        await leading
        assert (second.cancelled(), third.done()) == (True, True)
        assert field.plane.endpoints.all[0].in_flight == 0


@simulated
async def test_servers_come_go_and_are_reported() -> None:
    """One reported down gets nothing, and no canary lifts it; one reported up is up at once."""

    async with plane_of(servers=3, max_in_flight=16) as field:
        plane = field.plane
        first, second, third = (f"{server.url}/v1" for server in field.servers)
        plane.remove(third)
        plane.report_down(first, "drained")
        await field.crowd(8)
        plane.add(third, slots=2, lane="m@2", gpu="2")
        await asyncio.sleep(1000)
        await field.crowd(10)
        assert not field.servers[0].served
        assert plane.endpoints.at(third).slots == 2
        assert field.servers[2].together_max <= 2
        fresh = plane.destination(request(conversation="c-9"))
        assert fresh in (Destination(server=second), Destination(server=third, lane="m@2", gpu="2"))
        plane.report_down(second, "gone")
        plane.report_up(first)
        reply = await plane.generate(request(conversation="e-0"))
        assert (reply.timing.server, reply.timing.lane) in [(first, None), (third, "m@2")]
        plane.remove(second)
        await field.crowd(8)
        assert field.servers[0].served
        assert sum(server.canaries for server in field.servers) == 0
        plane.remove(first)
        plane.remove(third)
        with pytest.raises(TransientBackendError, match="no server now") as caught:
            await plane.generate(request())
        assert caught.value.is_unreachable


@simulated
async def test_late_reply_does_not_bring_back_a_server_that_was_reported_down() -> None:
    async with plane_of(servers=1) as field:
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


@pytest.mark.parametrize("servers", [1, 2, 3])
@simulated
async def test_suspect_is_served_alone_and_others_go_on(servers: int) -> None:
    """Two suspects among 60 requests: each alone on its server, all answered, and no server stays reserved."""

    async with plane_of(servers=servers, max_in_flight=8 * servers) as field:
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


@pytest.mark.parametrize("end", ["death", "cancelled while it drains", "cancelled while it is served"])
@simulated
async def test_reservation_ends_with_its_suspect_however_that_ends(end: str) -> None:
    async with plane_of(servers=2) as field:
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


def _server_of(field: Field, endpoint: Endpoint) -> SimulatedServer:
    return next(server for server in field.servers if endpoint.url.startswith(server.url + "/"))


@simulated
async def test_conversations_waiting_for_the_only_server_that_is_up_get_it_after_the_suspect() -> None:
    async with plane_of(servers=1) as field:
        suspect = asyncio.ensure_future(field.plane.generate(turn_of("s", 1, is_suspect=True)))
        await asyncio.sleep(0.1)
        others = [field.plane.generate(request(conversation=f"c-{one}")) for one in range(4)]
        await asyncio.gather(suspect, *others)
        assert field.servers[0].served[0].startswith("s/")


class StubbornServers(ServerWeights):
    """Servers that refuse weights for a while, or fail at them."""

    def __init__(self, answers: dict[str, list[Answer]]) -> None:
        super().__init__(lambda _url: None)
        self.answers = answers
        self.asked: list[str] = []

    async def _ask(self, url: str, path: str, body: JsonObject | None, deadline_s: float = 1.0) -> Answer:
        assert (path, body is None, deadline_s > 0) == ("/admin/weights", False, True)
        self.asked.append(url)
        return self.answers[url].pop(0) if self.answers.get(url) else TAKEN


TAKEN = Answer(status=200, body=b"{}")
BROKEN = Answer(status=500, body=b'{"error": {"message": "disk"}}')
WRONG = Answer(status=400, body=b'{"error": {"message": "names", "code": "weights_mismatch"}}')


@pytest.mark.parametrize("fault", [BROKEN, WRONG])
@simulated
async def test_server_that_fails_at_weights_that_another_took_serves_nothing_until_it_has_them(
    fault: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the first server refuses, no other is asked for."""
    update = WeightUpdate(version=3, weights=tmp_path)

    async def at_once(call: Callable[..., object], *given: object, **named: object) -> object:
        return call(*given, **named)

    monkeypatch.setattr(asyncio, "to_thread", at_once)

    async with plane_of(servers=2, max_in_flight=16) as field:
        plane = field.plane
        first, second = (f"{server.url}/v1" for server in field.servers)
        plane.weights = weights = StubbornServers({first: [WRONG]})
        with pytest.raises(WeightMismatchError, match="names"):
            await plane.update_weights(update)
        assert (weights.asked, weights.version) == ([first], 0)
        assert plane.endpoints.at(second).is_up

        weights.answers = {second: [fault, fault, fault]}
        await plane.update_weights(update)
        assert not plane.endpoints.at(second).is_up
        assert any("version 3" in line and second in line for line in field.said)
        await field.crowd(8, "c")
        assert (len(field.servers[0].served), field.servers[1].served) == (8, [])
        await asyncio.sleep(60.0)
        assert weights.asked[1:] == [first, *[second] * 4]
        assert "serves again" in field.said[-1]
        await field.crowd(8, "d")
        assert field.servers[1].served


@pytest.mark.parametrize(
    ("status", "what"), [(404, "servers of mac-serve"), (403, "admin_key_env"), (502, "status 502")]
)
def test_page_of_a_proxy_in_place_of_weights_is_known_by_its_status(status: int, what: str, tmp_path: Path) -> None:
    """It is no JSON, and says nothing of the server behind it."""
    page = Answer(status=status, body=b"<html>nginx</html>")
    updating = StubbornServers({"http://s0": [page]}).update(WeightUpdate(version=1, weights=tmp_path), ["http://s0"])

    with pytest.raises(WeightUpdateError, match=what) as caught:
        asyncio.run(updating)
    assert "<html>nginx</html>" in str(caught.value)


HANG_S_MAX = 40.0


def test_only_servers_without_any_sign_of_life_hang() -> None:
    for canary, models, before, after in itertools.product([False, True], [False, True], [None, 5.0], [None, 5.0, 9.0]):
        looks = Looks(canary=canary, models=models, tokens_before=before, tokens_after=after)
        is_alive = canary or (before is not None and after is not None and before != after)
        has_frozen = before is not None and after == before
        is_deaf = not models and after is None
        expected = Verdict.WORKS if is_alive else Verdict.HANGS if has_frozen or is_deaf else Verdict.UNKNOWN
        assert verdict(looks) is expected, looks


def test_token_counters_of_known_servers_are_read() -> None:
    pages = {
        b'# TYPE x counter\nvllm:prompt_tokens_total{model_name="m"} 3.0\nvllm:generation_tokens_total{a="b"} 4\n': 7,
        b"nano_steps_total 2.0\nnano_prompt_tokens_total 1.0\nnano_completion_tokens_total 1.0\n": 4,
        b"llamacpp:prompt_tokens_total 2\nllamacpp:tokens_predicted_total 1.5e3\n": 1502,
        b"sglang:generation_tokens_total{} 2 1700000000\n": 2,
        b"vllm:num_requests_running 3\nprocess_cpu_seconds_total 4\nhttp_requests_total 9\n": None,
        b"<html>404</html>": None,
        b"x_tokens_total eee\nx_tokens_total 1e999\nx_tokens_total NaN\n": None,
        b"": None,
    }
    assert {page: figures_of(page).computed for page in pages} == pages


async def ask(field: Field, name: str) -> str:
    """The reply to a request of the conversation `name`; the fault's text if it fails."""
    try:
        return (await field.plane.generate(request(conversation=name))).text
    except TransientBackendError as fault:
        is_as_a_death = fault.is_engine_death and fault.goes_elsewhere == (len(field.servers) > 1)
        return f"{'fault' if is_as_a_death else 'another fault'}: {fault}"


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("state", ["is_stopped", "is_wedged"])
@simulated
async def test_server_that_hangs_is_found_within_40_s_and_its_requests_are_cut_off(state: str, protocol: str) -> None:
    if (state, protocol) == ("is_wedged", "ollama"):
        pytest.skip("its requests may wait for others or for the model, however long")
    async with plane_of(servers=2, protocol=protocol, settings={"stall_s": 30}) as field:
        await asyncio.gather(*(ask(field, f"c-{number}") for number in range(8)))
        field.servers[0].change(**{state: True})
        since_s = field.now_s
        replies = await asyncio.gather(*(ask(field, f"c-{number}") for number in range(8)))
        assert field.now_s - since_s <= HANG_S_MAX + 0.1
        # Nobody waits for it again: its conversations go on elsewhere.
        since_s = field.now_s
        replies += await asyncio.gather(*(ask(field, f"c-{number}") for number in range(8)))
        assert field.now_s - since_s < 1.0

    assert len(field.stuck) > 0
    assert sum(reply.startswith("fault") for reply in replies) == 4
    assert all("answer for 40 s" in reply for reply in replies if reply.startswith("fault"))


@simulated
async def test_server_that_was_added_and_hangs_before_its_first_reply_is_found() -> None:
    """A fleet has warmed its lanes: none is compiling any more."""
    async with plane_of(servers=1, settings={"stall_s": 30}) as field:
        (url,) = (endpoint.url for endpoint in field.plane.endpoints.all)
        field.plane.remove(url)
        field.plane.add(url, slots=2, lane="m@0")
        field.servers[0].change(is_stopped=True)
        since_s = field.now_s

        assert (await ask(field, "c-0")).startswith("fault: ")
        assert field.now_s - since_s <= HANG_S_MAX + 0.1


@simulated
async def test_ollama_that_is_busy_for_an_hour_is_neither_asked_for_a_word_nor_spoken_of() -> None:
    async with plane_of(servers=1, slots=1, latency_s=3600.0, counts_tokens=False, protocol="ollama") as field:
        field.plane.endpoints.all[0].silence.has_answered = True  # It has loaded the model.
        replies = await asyncio.gather(*(ask(field, f"c-{number}") for number in range(4)))
        assert not [reply for reply in replies if "fault" in reply]
        assert (field.said, field.stuck, field.servers[0].canaries) == ([], [], 0)


@pytest.mark.parametrize("counts_tokens", [True, False])
@pytest.mark.parametrize("pages_need_slots", [True, False])
@simulated
async def test_busy_serial_server_is_never_set_aside(counts_tokens: bool, pages_need_slots: bool) -> None:
    """One slot, minutes for each reply, a long line: it answers nothing in between, be it canary or page."""

    async with plane_of(
        servers=1,
        slots=1,
        latency_s=50.0,
        counts_tokens=counts_tokens,
        pages_need_slots=pages_need_slots,
        settings={"timeout_s": 3600},
    ) as field:
        replies = await asyncio.gather(*(ask(field, f"c-{number}") for number in range(16)))
        assert not [reply for reply in replies if "fault" in reply]
        assert len(field.servers[0].served) >= 16
        assert not field.stuck
        assert not any("set aside" in line for line in field.said)


@pytest.mark.parametrize("counts_tokens", [True, False])
@simulated
async def test_server_that_was_quick_may_take_long_for_once(counts_tokens: bool) -> None:
    """Where no tokens are counted, one line says that nothing can be known."""

    async with plane_of(servers=1, slots=1, latency_s=1.0, counts_tokens=counts_tokens) as field:
        await asyncio.gather(*(ask(field, f"c-{number}") for number in range(4)))
        field.servers[0].latency_s = 200.0
        assert "fault" not in await ask(field, "c-0")
        assert not field.stuck
        assert [line for line in field.said if "may work" not in line] == []
        assert len(field.said) == (not counts_tokens)


@simulated
async def test_nothing_is_looked_at_while_answers_come_or_nothing_is_in_flight() -> None:
    async with plane_of(servers=2) as field:
        for number in range(300):
            await asyncio.gather(*(ask(field, f"c-{number}") for number in range(8)))
            if number % 100 == 0:
                await asyncio.sleep(1000)
        assert sum(server.canaries for server in field.servers) == 0


async def answered(backend: Backend) -> None:
    """Ask until there is an answer: a busy machine may take longer for one than an engine that hangs is waited for."""
    async with asyncio.timeout(LIMIT_S):
        while not isinstance(await found(backend), Reply):  # noqa: ASYNC110 - the engine is another process
            await asyncio.sleep(0.01)


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1])
@real
async def test_process_that_is_stopped_or_wedged_is_found(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no other beside it, which might only be slow."""
    monkeypatch.setattr(data_plane, "CANARY_S_MAX", 0.5)
    with running(latency_ms=5) as bad:
        async with started(backend_for(bad.url, settings={"stall_s": 0.4})) as backend:
            await answered(backend)
            bad.process.send_signal(number)
            if number is signal.SIGUSR1:
                bad.wait_until_wedged()
            faults = await asyncio.gather(*(found(backend, request(conversation=f"c-{one}")) for one in range(4)))

    assert all(isinstance(one, TransientBackendError) and one.is_engine_death for one in faults), faults
    assert all("no answer" in str(one) for one in faults), faults
