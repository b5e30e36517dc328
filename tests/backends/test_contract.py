"""What every backend does, and every one that speaks to a server, whatever its protocol."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import WITHHELD, ScriptedBackend, SendingError
from mac_runner.clock import SystemClock
from mac_runner.errors import (
    ConfigError,
    EngineDeadError,
    MacRunnerError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.scheduler import RunResult
from mac_runner.spec import RetryConfig
from mac_runner.testing.backends import BackendContract, BackendHarness, CannotError, Trouble
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply, Request
from tests.attacks.mutation import places
from tests.backends.asking import (
    KEY,
    NOBODY,
    WIRES,
    Script,
    Wire,
    backend_of,
    error_of,
    fault_of,
    first,
    found,
    only,
    outcome,
    reply_of,
    started,
    up,
)
from tests.faults.tier import SCALE
from tests.patience import LIMIT_S
from tests.sim.anthropic_server import AnthropicServer, message
from tests.sim.behaviour import (
    Behaviour,
    Hang,
    Raw,
    Received,
    Reset,
    Say,
    Send,
    completion,
    echo,
    encoded,
    failure,
    flood,
    squeezed,
)
from tests.sim.held_time import held
from tests.sim.ollama_server import OllamaServer
from tests.sim.ollama_server import failure as failing
from tests.sim.openai_run import play
from tests.sim.openai_server import OpenaiServer
from tests.sim.recorder import MemoryRecorder
from tests.sim.requests import EVERY_SETTING, SETTINGS, request
from tests.sim.toy import tasks


class HeldClock(SystemClock):
    """A clock on which the next sleep, or every one, does not end."""

    holds_next = False
    is_held = False

    async def sleep(self, seconds: float) -> None:
        if self.is_held or self.holds_next:
            self.holds_next = False
            await asyncio.Event().wait()
        await super().sleep(seconds)


class ScriptedHarness(BackendHarness):
    patience_s = LIMIT_S
    wait_s = 0.01

    def __init__(self) -> None:
        self.clock = HeldClock()

    def build(self) -> Backend:
        return ScriptedBackend(
            policy=lambda _, chance: f"{chance.random()}", capacity=4, latency_ms=1, clock=self.clock
        )

    async def trouble(self, kind: Trouble) -> None:
        if kind is not Trouble.HUNG:
            raise CannotError(f"a program in this process is never {kind}")
        self.clock.is_held = True

    async def heal(self) -> None:
        self.clock.is_held = False

    def request_slow(self) -> Request:
        self.clock.holds_next = True
        return self.request()


class WireHarness(BackendHarness):
    """A server that does what the last message says, or what is wrong with it."""

    patience_s = LIMIT_S
    secret = KEY

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.wrong: Trouble | None = None
        self.server = wire.serve(self.answer)
        self.slow = 0

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[None]:
        async with self.server:
            yield

    def build(self) -> Backend:
        return backend_of(self.server, key=KEY, settings={"max_in_flight": 4})

    async def trouble(self, kind: Trouble) -> None:
        self.wrong = kind
        if kind is Trouble.DEAD:
            await self.server.die()

    async def heal(self) -> None:
        self.wrong = None

    def request_too_long(self) -> Request:
        return self.request("long")

    def request_cut_off(self) -> Request:
        return self.request("cut")

    def request_slow(self) -> Request:
        return self.request("slow")

    def unfinished(self) -> int:
        """The connections of requests that were not answered; a client that lets go of one closes its connection."""
        if isinstance(self.server, OllamaServer):
            raise CannotError("connections of its start are kept")
        return self.slow if self.server.connections else 0

    def answer(self, received: Received) -> Behaviour:
        asked = content_of(received)
        self.slow += asked == "slow"
        ways: dict[Trouble | str | None, Behaviour] = {
            Trouble.BUSY: self.wire.fail(429, f"not now, {KEY}"),
            Trouble.HUNG: Hang(),
            Trouble.GARBAGE: Send(200, f"<html>Bearer {KEY}".encode()),
            "long": self.wire.too_long,
            "cut": Say("So be", "length"),
            "slow": Hang(),
        }
        return ways.get(self.wrong) or ways.get(asked) or echo(received)


def content_of(received: Received) -> str:
    return cast("list[dict[str, str]]", received.json["messages"])[-1]["content"]


class TestScripted(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return ScriptedHarness()


@pytest.mark.ci
class TestWires(BackendContract):
    @pytest.fixture
    def harness(self, wire: Wire) -> BackendHarness:
        return WireHarness(wire)


NAMES = {"openai": {}, "ollama": {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}}


@pytest.mark.parametrize("protocol", NAMES)
def test_every_setting_is_sent_under_its_name(protocol: str) -> None:
    server = WIRES[protocol].serve(echo)
    vllm = {"server": "vllm"} if protocol == "openai" else {}
    reply_of(server, request(sampling=EVERY_SETTING), key=KEY, settings=vllm)
    (received,) = server.received

    sent = cast("JsonObject", received.json.get("options", received.json))
    assert {name: value for name, value in sent.items() if name not in ("model", "messages")} == {
        NAMES[protocol].get(name, name): value for name, value in SETTINGS.items()
    }


def test_half_a_surrogate_pair_stops_neither_a_request_nor_a_reply(wire: Wire) -> None:
    server = wire.serve(lambda _received: Say("c\ud83dd"))

    assert reply_of(server, request("a\ud83db"), key=KEY).text == "c\ufffdd"
    assert content_of(server.received[0]) == "a?b"


GARBAGE: dict[str, Behaviour] = {
    "a page of HTML": Send(200, b"<html>Welcome!</html>"),
    "truncated JSON": Send(200, b'{"choices": [{"mess'),
    "a list": Send(200, b"[1, 2]"),
    "brackets 100,000 deep": Send(200, b"[" * 100_000),
    "no UTF-8": Send(200, b"\xff\xfe"),
    "an empty object": Send(200, b"{}"),
    "a compressed reply, not asked for": squeezed(b'{"choices": []}'),
    "a body without an end": flood(),
    "a redirect": Send(307, b"", (("Location", f"{NOBODY}/v1/messages"),)),
}
NO_TEXTS: list[JsonValue] = [None, True, -1, 0.5, 10**30, float("nan"), [], {}, ["x"], {"error": "no"}, [{"text": "x"}]]
TEXTS: list[JsonValue] = [
    "",
    "repetition",
    "\ud800\x00\x1b[2J",
    "x" * 5_000,
    "<think>So.",
    "<|channel|>analysis<|message|>",
]
ODD = (*NO_TEXTS, *TEXTS)
NO_REPLIES = (
    *(behaviour.body for behaviour in GARBAGE.values() if isinstance(behaviour, Send) and behaviour.status == 200),
    *(encoded({"error": {"message": "no", "code": status}}) for status in (400, 401, 404, 413, 500, 502, 503)),
    *(encoded({"type": "error", "error": {"type": kind}}) for kind in ("billing_error", "api_error", "timeout_error")),
)


def odd_answer(good: bytes, dice: Random) -> Send:
    """A body with status 200: a good one in which a few values are others, or none that is like it."""
    if dice.random() < 0.3:
        return Send(200, dice.choice(NO_REPLIES))
    body: JsonObject = json.loads(good)
    for _ in range(dice.randint(1, 3)):
        holder, key = dice.choice(places(body))
        value = holder[key]
        holder[key] = value * 2 if isinstance(value, list) and dice.random() < 0.5 else dice.choice(ODD)
    return Send(200, encoded(body))


RESPONSE: JsonObject = {"message": {"role": "assistant", "content": "x"}, "done": True, "done_reason": "stop"}
GOOD: dict[str, Callable[[Received], bytes]] = {
    "openai": lambda received: completion(Say(), received),
    "ollama": lambda _received: encoded(RESPONSE | {"prompt_eval_count": 9, "eval_count": 1}),
    "anthropic": lambda _received: message().body,
}


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("protocol", GOOD)
def test_whatever_is_answered_with_200_fails_conversations_at_most(protocol: str, share: float) -> None:
    """The same request always gets the same answer, so that no other try helps; the run ends all the same."""
    impatient = RetryConfig(max_attempts=2, backoff_s=0.0, backoff_s_max=0.0, engine_patience_s=1e-9)
    results: list[RunResult] = []
    for seed in range(4 * SCALE):

        def answer(received: Received, seed: int = seed) -> Behaviour:
            dice = Random(f"{seed} {hashlib.sha256(received.body).hexdigest()}")
            is_odd = dice.random() < share
            return odd_answer(GOOD[protocol](received), dice) if is_odd else echo(received)

        async def playing(script: Script = answer) -> RunResult:
            async with WIRES[protocol].serve(script) as server:
                backend = backend_of(server, key=KEY)
                return await play(backend, tasks(6, models=1), MemoryRecorder(), retry=impatient)

        results.append(asyncio.run(playing()))

    assert {(result.finished + result.failed, result.interrupted) for result in results} == {(6, False)}
    assert share < 1.0 or any(result.failed for result in results)
    assert share == 1.0 or any(result.finished for result in results)


@held
async def test_answer_that_is_no_reply_stays_in_no_memory(wire: Wire) -> None:
    """It may be long, there may be many, and a run rarely collects what holds itself."""
    async with up(wire.serve(only(GARBAGE["a page of HTML"])), key=KEY) as backend:
        gc.collect()
        gc.disable()
        try:
            before = {id(error) for error in errors_in_memory()}
            await asyncio.create_task(found_words(backend))
            left = [error for error in errors_in_memory() if id(error) not in before]
        finally:
            gc.enable()

    assert not left


def errors_in_memory() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, MacRunnerError | SendingError)]


async def found_words(backend: Backend) -> str:
    return str(await found(backend))


CUT = {
    "an answer that is no HTTP": Raw((b"SSH-2.0-OpenSSH_9.9\r\n\r\n",), then="close"),
    "a connection that breaks": Reset(),
    "one that breaks in the head": Reset(sent=60),
    "one that breaks in the body": Reset(sent=200),
}


@pytest.mark.parametrize("behaviour", [*GARBAGE.values(), *CUT.values()], ids=[*GARBAGE, *CUT])
def test_answer_that_is_none_is_worth_another_sending(wire: Wire, behaviour: Behaviour) -> None:
    error = fault_of(wire.serve(only(behaviour)), key=KEY)

    assert not error.is_busy
    assert not error.is_engine_death
    assert behaviour in CUT.values() or error.is_attempt
    assert behaviour != GARBAGE["a body without an end"] or "more than" in str(error)


@pytest.mark.parametrize("status", [409, 429, 503, 529])
def test_server_that_asks_for_a_pause_is_busy(wire: Wire, status: int) -> None:
    error = fault_of(wire.serve(first(wire.fail(status, "slow down", headers=(("Retry-After", "7"),)))), key=KEY)

    assert (error.retry_after_s, error.is_busy, error.is_attempt) == (7.0, True, False)
    assert f"status {status}: slow down" in str(error)


def test_one_request_is_sent_once_whatever_becomes_of_it(wire: Wire) -> None:
    server = wire.serve(lambda _received: wire.fail(500, "out of memory"))
    error = fault_of(server, key=KEY)

    assert (error.is_attempt, error.is_engine_death) == (True, False)
    assert f":{server.port}" in str(error)
    assert "status 500: out of memory" in str(error)
    assert server.requests == 1


@pytest.mark.parametrize("status", [400, 401, 403])
@held
async def test_refused_request_fails_its_conversation_alone_where_a_word_is_answered(wire: Wire, status: int) -> None:
    async with up(wire.serve(first(wire.fail(status, "not with these words"))), key=KEY) as backend:
        with pytest.raises(RequestRefusedError, match=f"status {status}: not with these"):
            await backend.generate(request())
        assert (await backend.generate(request())).text


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_server_that_denies_everybody_ends_the_run(wire: Wire, status: int) -> None:
    error = error_of(wire.serve(lambda _received: wire.fail(status, "not you")), key=KEY)

    assert isinstance(error, EngineDeadError)
    assert f"status {status}: not you" in str(error)
    assert re.search("check .* key", str(error))


@held
async def test_server_that_hangs_up_on_kept_connections_is_sent_the_request_over_a_new_one(wire: Wire) -> None:
    server = wire.serve(echo)
    server.answers_per_connection = 1
    async with up(server, key=KEY) as backend:
        texts = {(await backend.generate(request())).text for _ in range(3)}

    assert (len(texts), server.requests) == (1, 3)


@held
async def test_server_that_dies_over_a_request_on_a_kept_connection_is_told_as_a_death(wire: Wire) -> None:
    is_there = asyncio.Event()

    def hang(received: Received) -> Behaviour:
        if received.number:
            is_there.set()
        return Hang() if received.number else Say()

    server = wire.serve(hang)
    async with up(server, key=KEY) as backend:
        await backend.generate(request())
        asked = asyncio.create_task(found(backend))
        await is_there.wait()
        await server.die()
        error = await asked

    assert isinstance(error, TransientBackendError)
    assert (error.is_engine_death, error.is_unreachable) == (True, True)


@held
async def test_server_that_went_away_is_unreachable(wire: Wire) -> None:
    server = wire.serve(echo)
    async with up(server, key=KEY) as backend:
        await server.die()
        with pytest.raises(TransientBackendError) as caught:
            await backend.generate(request())

    assert caught.value.is_unreachable


@pytest.mark.parametrize("text", [f"bad header: Bearer {KEY}", f'"{KEY}'])
def test_what_a_server_says_with_the_key_in_it_is_withheld(wire: Wire, text: str) -> None:
    told: list[str] = []
    for behaviour in (wire.fail(400, text), wire.fail(429, text), wire.fail(500, text), Send(200, text.encode())):
        error = error_of(wire.serve(first(behaviour)), key=KEY, said=told)
        assert KEY not in f"{error} {told}"
        assert WITHHELD in str(error) or behaviour.status == 200


@pytest.mark.parametrize("key", ["EMPTY", "stop", "null"])
def test_key_that_is_a_word_takes_nothing_out_of_a_reply(key: str) -> None:
    text = f"The box says {key}."
    for server in (
        OpenaiServer(script=lambda _received: Say(text)),
        OllamaServer(answer=lambda _received: Say(text)),
        AnthropicServer(answer=lambda _received: Say(text)),
    ):
        assert reply_of(server, key=key).text == text


@pytest.mark.parametrize(
    ("protocol", "key", "said", "verdict", "is_death"),
    [
        ("openai", "insufficient_quota", failure(429, "", code="insufficient_quota"), RequestRefusedError, False),
        ("openai", "encountered", failure(500, "EngineCore encountered an issue."), TransientBackendError, False),
        ("openai", "context_length_exceeded", WIRES["openai"].too_long, FinishReason.OVERFLOW, False),
        ("ollama", "terminated", failing(500, "runner process has terminated"), TransientBackendError, True),
        ("ollama", "context_length", failing(400, "context_length exceeded"), FinishReason.OVERFLOW, False),
    ],
)
def test_verdict_goes_by_the_words_of_the_server_even_where_they_hold_the_key(
    protocol: str, key: str, said: Send, verdict: object, is_death: bool
) -> None:
    server = OllamaServer(answer=only(said)) if protocol == "ollama" else OpenaiServer(script=only(said))
    found = outcome(server, key=key)

    assert verdict is (found.finish_reason if isinstance(found, Reply) else type(found))
    assert getattr(found, "is_engine_death", False) is is_death
    assert key not in str(found)


@held
async def test_start_where_nobody_listens_names_the_address(wire: Wire) -> None:
    server = wire.serve(echo)
    server.port = 9  # The discard port.
    backend = backend_of(server, key=KEY)

    with pytest.raises(EngineDeadError, match=NOBODY):
        async with started(backend):
            pass


def denying(_received: Received) -> Send:
    return WIRES["openai"].fail(401, f"who are you, {KEY}?")


WRONG = {
    "openai, key": (OpenaiServer(page=denying, script=denying), r"base_urls: .*401: \(withheld: .*key in \$STUB_KEY"),
    "openai, model": (OpenaiServer(models=("llama", "gemma")), r"model: .*'stub'; .*: gemma, llama$"),
    "openai, model, beside a key": (
        OpenaiServer(models=("llama", f"model-of-{KEY}")),
        r"model: .*'stub'; .*: \(withheld: it repeats a key\)$",
    ),
    "ollama, key": (OllamaServer(api_key="another"), r"401: unauthorized; check the key in \$OLLAMA_API_KEY"),
    "ollama, model": (OllamaServer(shelf={}), "model: .*run `ollama pull qwen3:4b`, or start the run with --pull"),
    "anthropic, key": (AnthropicServer(api_key="another"), r"base_url: .*invalid bearer.*\$ANTHROPIC_API_KEY"),
    "anthropic, model": (
        AnthropicServer(models=(), answer=lambda _received: WIRES["anthropic"].fail(404, "model: stub")),
        "model: .*check .* name",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@held
async def test_start_with_a_wrong_setting_is_bad_input_under_its_key(wrong: str) -> None:
    server, text = WRONG[wrong]
    protocol = wrong.split(",")[0]
    variable: dict[str, JsonValue] = {"api_key_env": "STUB_KEY"} if protocol == "openai" else {}
    with pytest.raises(ConfigError, match=rf"m\.{protocol}_config.*{text}") as caught:
        async with up(server, key=KEY, settings=variable):
            pass

    assert KEY not in str(caught.value)
    assert str(caught.value).startswith(".".join(map(str, caught.value.key)))


@held
async def test_backend_that_is_closed_answers_nobody(wire: Wire) -> None:
    async with up(wire.serve(echo), key=KEY) as backend:
        pass
    with pytest.raises(EngineDeadError, match="not started"):
        await backend.generate(request())
