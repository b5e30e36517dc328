"""The contract of every backend, kept by the scripted one and by the HTTP backends at stub servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import ScriptedBackend
from mac_runner.clock import SystemClock
from mac_runner.testing.backends import BackendContract, BackendHarness, CannotError, Trouble
from mac_runner.types import JsonObject, Request
from tests.backends.anthropic.asking import KEY as ANTHROPIC_KEY
from tests.backends.anthropic.asking import backend_at as anthropic_at
from tests.backends.ollama.asking import backend_at
from tests.backends.openai.asking import KEY
from tests.patience import LIMIT_S
from tests.sim.anthropic_server import AnthropicServer
from tests.sim.anthropic_server import failure as declined
from tests.sim.behaviour import Behaviour, Hang, Received, Say, Send, echo, failure
from tests.sim.ollama_server import Fault, OllamaStub, Sent, answering, hang
from tests.sim.openai_run import backend_for
from tests.sim.openai_server import OpenaiServer


class HeldClock(SystemClock):
    """A clock on which the next sleep, or every one, does not end."""

    holds_next = False
    is_held = False

    async def sleep(self, seconds: float) -> None:
        if self.is_held or self.holds_next:
            self.holds_next = False
            await asyncio.Event().wait()
        await super().sleep(seconds)


class PatientHarness(BackendHarness):
    """On a machine with other work to do."""

    patience_s = LIMIT_S


class ScriptedHarness(PatientHarness):
    def __init__(self) -> None:
        self.clock = HeldClock()

    def build(self) -> Backend:
        return ScriptedBackend(policy=policy, capacity=4, latency_ms=1.0, clock=self.clock)

    async def trouble(self, kind: Trouble) -> None:
        if kind is not Trouble.HUNG:
            raise CannotError(f"a program in this process is never {kind}")
        self.clock.is_held = True

    async def heal(self) -> None:
        self.clock.is_held = False

    def request_too_long(self) -> Request:
        raise CannotError("a program has no context")

    def request_cut_off(self) -> Request:
        raise CannotError("a program ignores max_tokens")

    def request_slow(self) -> Request:
        self.clock.holds_next = True
        return self.request()


def policy(view: object, chance: Random) -> str:
    return f"word {chance.randrange(10**6)}"


class OpenaiHarness(PatientHarness):
    secret = KEY

    def __init__(self) -> None:
        self.wrong: Trouble | None = None
        self.server = OpenaiServer(script=self.answer)

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[None]:
        async with self.server:
            yield

    def build(self) -> Backend:
        return backend_for(self.server.url, key=KEY, settings={"max_in_flight": 4})

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

    def answer(self, received: Received) -> Behaviour:
        faults: dict[Trouble | None, Behaviour] = {
            Trouble.BUSY: failure(429, f"not now, {KEY}"),
            Trouble.HUNG: Hang(),
            Trouble.GARBAGE: Send(200, f"<html>Bearer {KEY}".encode()),
        }
        if self.wrong in faults:
            return faults[self.wrong]
        ways: dict[str, Behaviour] = {
            "long": failure(400, "too long", code="context_length_exceeded"),
            "cut": Say("So be", "length"),
            "slow": Hang(),
        }
        return ways.get(content_of(received.json), echo(received))


class AnthropicHarness(PatientHarness):
    secret = ANTHROPIC_KEY

    def __init__(self) -> None:
        self.wrong: Trouble | None = None
        self.server = AnthropicServer(answer=self.answer, api_key=ANTHROPIC_KEY)
        self.slow = 0

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[None]:
        async with self.server:
            yield

    def build(self) -> Backend:
        return anthropic_at(self.server.host)

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
        return self.slow if self.server.connections else 0

    def answer(self, received: Received) -> Behaviour:
        faults: dict[Trouble | None, Behaviour] = {
            Trouble.BUSY: declined(529, f"Overloaded, {ANTHROPIC_KEY}", kind="overloaded_error"),
            Trouble.HUNG: Hang(),
            Trouble.GARBAGE: Send(200, f"<html>Bearer {ANTHROPIC_KEY}".encode()),
        }
        if self.wrong in faults:
            return faults[self.wrong]
        asked = content_of(received.json)
        self.slow += asked == "slow"
        ways: dict[str, Behaviour] = {
            "long": declined(400, "prompt is too long: 9 tokens > 8 maximum"),
            "cut": Say("So be", "length"),
            "slow": Hang(),
        }
        return ways.get(asked, echo(received))


class OllamaHarness(PatientHarness):
    def __init__(self) -> None:
        self.wrong: Trouble | None = None
        self.stub = OllamaStub()
        self.stub.script, self.stub.reply = self.answer, reply

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[None]:
        with self.stub:
            yield

    def build(self) -> Backend:
        return backend_at(self.stub.host)

    async def trouble(self, kind: Trouble) -> None:
        self.wrong = kind
        self.stub.is_hung = kind is Trouble.HUNG
        if kind is Trouble.DEAD:
            self.stub.stop()

    async def heal(self) -> None:
        self.wrong = None
        self.stub.is_hung = False

    def request_too_long(self) -> Request:
        return self.request("word " * 10_000)

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=1)

    def request_slow(self) -> Request:
        return self.request("slow")

    def answer(self, path: str, body: JsonObject, due: Sent) -> Fault | None:
        if path != "/api/chat" or not body["messages"]:
            return None
        if self.wrong is Trouble.BUSY:
            return answering({"error": "server busy, please try again. maximum pending requests exceeded"}, status=503)
        if self.wrong is Trouble.GARBAGE:
            return answering(b"<html>Welcome!</html>")
        return hang if content_of(body) == "slow" else None


def reply(body: JsonObject) -> str:
    return f"word {hashlib.sha256(json.dumps(body).encode()).hexdigest()[:12]}"


def content_of(body: JsonObject) -> str:
    return cast("list[dict[str, str]]", body["messages"])[-1]["content"]


@pytest.mark.ci
class TestScripted(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return ScriptedHarness()


@pytest.mark.ci
class TestOpenai(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return OpenaiHarness()


@pytest.mark.ci
class TestAnthropic(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return AnthropicHarness()


@pytest.mark.ci
class TestOllama(BackendContract):
    @pytest.fixture
    def harness(self) -> BackendHarness:
        return OllamaHarness()
