from __future__ import annotations

import asyncio
from random import Random

import pytest

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.errors import RequestRefusedError
from mac_runner.simulation.testing import SimulatedClock, simulate
from mac_runner.types import FinishReason, Message, Prompt, Reply, Sampling, TokenCount
from tests.sim.requests import request

PROMPT = Prompt(messages=(Message(role="user", content="x" * 9),), view=("seat", 3))


def echo(view: object, random: Random) -> str:
    return f"{view} {random.randrange(10**6)}"


def ask(backend: ScriptedBackend, seed: int) -> tuple[Reply, float]:
    async def program() -> tuple[Reply, float]:
        await backend.start()
        reply = await backend.generate(request(prompt=PROMPT, sampling=Sampling(seed=seed)))
        await backend.close()
        await backend.close()
        return reply, asyncio.get_running_loop().time()

    return simulate(program)


def scripted(policy: object = echo, latency_ms: float = 0.0) -> ScriptedBackend:
    assert callable(policy)
    return ScriptedBackend(policy=policy, capacity=5, latency_ms=latency_ms, clock=SimulatedClock())


def test_scripted_player_gets_the_view_and_a_generator_of_the_requests_seed() -> None:
    first, again, other = (ask(scripted(), seed)[0] for seed in (1, 1, 2))

    assert first.text.startswith("('seat', 3) ")
    assert first == again
    assert first.text != other.text


def test_scripted_reply_takes_its_latency_and_estimates_its_tokens() -> None:
    reply, took_s = ask(scripted(lambda view, random: "12345", latency_ms=250.0), 0)

    assert took_s == 0.25
    assert reply.finish_reason is FinishReason.STOP
    assert reply.tokens == TokenCount(prompt=3, cached=0, completion=2)


def test_a_failing_policy_refuses_its_request() -> None:
    def broken(view: object, random: Random) -> str:
        raise KeyError("no such player")

    with pytest.raises(RequestRefusedError, match="'no such player'"):
        ask(scripted(broken), 0)
