from __future__ import annotations

import asyncio
from random import Random

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import DelayedBackend, ScriptedBackend, ScriptedConfig
from mac_runner.errors import RequestRefusedError
from mac_runner.latency import EngineLatency
from mac_runner.simulation.testing import SimulatedClock, simulate
from mac_runner.types import Reply
from tests.backends.building import built, defined
from tests.sim.requests import request

LATENCY = EngineLatency(prefill_ms=100, kernel_ms=10, quantum=4)


def answer(text: str, *, engine_ms: float = 0.0) -> tuple[Reply, float]:
    """The reply of a delayed engine that takes `engine_ms` by itself, and how long it took in all."""
    clock = SimulatedClock()
    engine = ScriptedBackend(policy=lambda view, chance: text, capacity=3, latency_ms=engine_ms, clock=clock)

    async def program() -> tuple[Reply, float]:
        backend = DelayedBackend(engine, LATENCY, clock)
        await backend.start()
        reply = await backend.generate(request())
        await backend.close()
        assert backend.capacity == 3
        return reply, asyncio.get_running_loop().time()

    return simulate(program)


@pytest.mark.parametrize(("tokens", "took_s"), [(1, 0.11), (4, 0.11), (5, 0.12), (40, 0.2)])
def test_reply_takes_its_prefill_and_each_quantum_begun(tokens: int, took_s: float) -> None:
    reply, measured_s = answer("x" * 4 * tokens)

    assert reply.tokens.completion == tokens
    assert measured_s == pytest.approx(took_s)


@pytest.mark.parametrize(("engine_ms", "took_s"), [(60.0, 0.11), (110.0, 0.11), (500.0, 0.5)])
def test_time_the_engine_takes_counts(engine_ms: float, took_s: float) -> None:
    assert answer("x", engine_ms=engine_ms)[1] == pytest.approx(took_s)


def test_error_of_the_engine_is_not_held_back() -> None:
    def fail(view: object, chance: Random) -> str:
        raise ZeroDivisionError

    async def program() -> float:
        engine = ScriptedBackend(policy=fail, capacity=1, latency_ms=0.0, clock=SimulatedClock())
        with pytest.raises(RequestRefusedError):
            await DelayedBackend(engine, LATENCY, SimulatedClock()).generate(request())
        return asyncio.get_running_loop().time()

    assert simulate(program) == 0.0


@pytest.mark.parametrize(("latency", "kind"), [(None, ScriptedBackend), (LATENCY, DelayedBackend)])
def test_model_definition_says_whether_replies_are_delayed(latency: EngineLatency | None, kind: type[Backend]) -> None:
    definition = defined(ScriptedConfig(policy="p"), latency=latency)

    assert type(built(definition)) is kind
