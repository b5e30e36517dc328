"""A server that hangs is found, and one that is merely busy is left alone."""

from __future__ import annotations

import asyncio
import itertools
import signal
from contextlib import suppress

import pytest

from mac_runner.backends.openai import data_plane
from mac_runner.backends.openai.testing import Looks, OpenaiBackend, Verdict, tokens_counted, verdict
from mac_runner.errors import TransientBackendError
from tests.backends.openai.simulated import Field, plane_of
from tests.patience import LIMIT_S
from tests.sim.engine_stub import running
from tests.sim.held_time import simulated
from tests.sim.openai_run import backend_for
from tests.sim.requests import request

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
        b"x_tokens_total eee\n": 0,
        b"": None,
    }
    assert {page: tokens_counted(page) for page in pages} == pages


async def ask(field: Field, name: str) -> str:
    """The reply to a request of the conversation `name`; the fault's text if it fails."""
    try:
        return (await field.plane.generate(request(conversation=name))).text
    except TransientBackendError as fault:
        is_as_a_death = fault.is_engine_death and fault.goes_elsewhere == (len(field.servers) > 1)
        return f"{'fault' if is_as_a_death else 'another fault'}: {fault}"


@pytest.mark.parametrize("state", ["is_stopped", "is_wedged"])
@simulated
async def test_server_that_hangs_is_found_within_40_s_and_its_requests_are_cut_off(state: str) -> None:
    async with plane_of(servers=2) as field:
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


async def answered(backend: OpenaiBackend) -> None:
    """Ask until there is an answer: a busy machine may take longer for one than an engine that hangs is waited for."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(TransientBackendError):
                await backend.generate(request())
                return
            await asyncio.sleep(0.01)


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1])
def test_process_that_is_stopped_or_wedged_is_found(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no other beside it, which might only be slow."""
    monkeypatch.setattr(data_plane, "CANARY_S_MAX", 0.5)

    async def main() -> None:
        with running(latency_ms=5) as bad:
            backend = backend_for(bad.url, settings={"stall_s": 0.4})
            await backend.start()
            try:
                await answered(backend)
                bad.process.send_signal(number)
                if number is signal.SIGUSR1:
                    bad.wait_until_wedged()
                asked = (backend.generate(request(conversation=f"c-{one}")) for one in range(4))
                found = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(one, TransientBackendError) and one.is_engine_death for one in found), found
                assert all("no answer" in str(one) for one in found), found
            finally:
                await backend.close()

    asyncio.run(main())
