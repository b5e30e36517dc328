"""Scripted players as an engine, and the engine whose replies take as long as a latency model says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import JSON_OBJECT, Form, ScriptedBackend, ScriptedConfig
from mac_runner.errors import BackendError, EngineDeadError, FormRefusedError, RequestRefusedError
from mac_runner.latency import EngineLatency
from mac_runner.planning.testing import SimulatedClock
from mac_runner.registry import CONSTRAINS_ALL
from mac_runner.scheduler.testing import generate
from mac_runner.types import Decoding, FinishReason, JsonObject, Message, Prompt, Reply, Request, Sampling, TokenCount
from tests.backends.building import built, defined
from tests.sim.requests import request
from tests.sim.shuffled import simulate

PROMPT = Prompt(messages=(Message(role="user", content="x" * 9),), view=("seat", 3))
LATENCY = EngineLatency(prefill_ms=100, kernel_ms=10, quantum=4)
Policy = Callable[[object, Random], str]


def scripted(policy: Policy, latency_ms: float = 0.0) -> ScriptedBackend:
    return ScriptedBackend(policy=policy, capacity=3, latency_ms=latency_ms, clock=SimulatedClock())


def delayed(backend: ScriptedBackend) -> ScriptedBackend:
    backend.latency = LATENCY
    return backend


def saying(text: str) -> Policy:
    return lambda view, chance: text


def echo(view: object, chance: Random) -> str:
    return f"{view} {chance.randrange(10**6)}"


def broken(view: object, chance: Random) -> str:
    raise KeyError("no such player")


def ask(backend: Backend, seed: int = 0) -> tuple[Reply | RequestRefusedError, float]:
    """What a request comes to, and how long that takes."""

    async def program() -> tuple[Reply | RequestRefusedError, float]:
        await backend.start()
        reply: Reply | RequestRefusedError
        try:
            asked = request(prompt=PROMPT, sampling=Sampling(seed=seed))
            reply = await generate(backend, asked, deadline_s=60.0, clock=SimulatedClock())
        except RequestRefusedError as error:
            reply = error
        await backend.close()
        await backend.close()
        assert backend.capacity == 3
        return reply, asyncio.get_running_loop().time()

    return simulate(program)


def test_scripted_player_gets_the_view_and_a_generator_of_the_requests_seed() -> None:
    first, again, other = (ask(scripted(echo), seed)[0] for seed in (1, 1, 2))

    assert isinstance(first, Reply)
    assert first.text.startswith("('seat', 3) ")
    assert first == again != other


def test_scripted_reply_takes_its_latency_and_estimates_its_tokens() -> None:
    tokens = TokenCount(prompt=3, cached=0, completion=2)

    assert ask(scripted(saying("12345"), latency_ms=250.0)) == (
        Reply(text="12345", finish_reason=FinishReason.STOP, tokens=tokens),
        0.25,
    )


def test_error_of_a_policy_refuses_its_request_and_is_not_held_back() -> None:
    for backend in (scripted(broken), delayed(scripted(broken))):
        error, took_s = ask(backend)
        assert isinstance(error, RequestRefusedError)
        assert "'no such player'" in str(error)
        assert took_s == 0.0


@pytest.mark.parametrize(
    ("tokens", "engine_ms", "took_s"),
    [
        # The prefill, and each quantum begun.
        (1, 0.0, 0.11),
        (4, 0.0, 0.11),
        (5, 0.0, 0.12),
        (40, 0.0, 0.2),
        # The time that the engine takes by itself counts.
        (1, 60.0, 0.11),
        (1, 110.0, 0.11),
        (1, 500.0, 0.5),
    ],
)
def test_delayed_reply_takes_as_long_as_the_latency_says(tokens: int, engine_ms: float, took_s: float) -> None:
    engine = scripted(saying("x" * 4 * tokens), latency_ms=engine_ms)
    reply, measured_s = ask(delayed(engine))

    assert isinstance(reply, Reply)
    assert reply.tokens.completion == tokens
    assert measured_s == pytest.approx(took_s)


SCHEMA: JsonObject = {"type": "object", "properties": {"vote": {"type": "string"}}}


class Strict(ScriptedBackend):
    """Answers the first `holds` requests with the form that it was asked for, and refuses the form of others."""

    def __init__(self, holds: int) -> None:
        super().__init__(policy=saying(""), capacity=1, latency_ms=0.0, clock=SimulatedClock())
        self.left = holds

    async def generate(self, request: Request) -> Reply:
        if request.prompt.is_constrained and not self.left:
            raise FormRefusedError("no grammars")
        self.left -= request.prompt.is_constrained
        return Reply(text=str(request.prompt.schema))


@pytest.mark.parametrize(
    ("decoding", "holds", "said"),
    [
        ("schema", 2, [str(SCHEMA), str(SCHEMA)]),
        ("json_object", 2, [str(JSON_OBJECT), str(JSON_OBJECT)]),
        ("none", 0, ["None", "None"]),
        (
            "schema",
            0,
            [EngineDeadError("refuses to hold replies to a form; set .*m.constrained_decoding: json_object")],
        ),
        ("json_object", 0, [EngineDeadError("refuses to hold replies to a form; set .*m.constrained_decoding: none ")]),
        (
            "schema",
            1,
            [str(SCHEMA), RequestRefusedError("refuses the form of this reply; set .*m.constrained_decoding")],
        ),
    ],
)
def test_a_reply_is_held_to_what_its_model_is_set_to_and_an_engine_that_never_did_that_ends_the_run(
    decoding: Decoding, holds: int, said: list[str | BackendError]
) -> None:
    backend = Strict(holds)
    backend.form = Form("m", decoding, CONSTRAINS_ALL)
    asked = request(prompt=replace(PROMPT, schema=SCHEMA))

    async def program() -> None:
        for expected in said:
            answer = generate(backend, asked, deadline_s=60.0, clock=SimulatedClock())
            if isinstance(expected, str):
                assert (await answer).text == expected
            else:
                with pytest.raises(type(expected), match=str(expected)) as caught:
                    await answer
                assert type(caught.value) is type(expected)

    simulate(program)


@pytest.mark.parametrize("latency", [None, LATENCY])
def test_model_definition_says_whether_replies_are_delayed(latency: EngineLatency | None) -> None:
    definition = defined(ScriptedConfig(policy="p", capacity=3), latency=latency)
    backend = built(definition, policy=echo)

    assert ask(backend, 1) == ask(delayed(scripted(echo)) if latency else scripted(echo), 1)
