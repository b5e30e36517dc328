"""A server on a real socket that is hostile as a mode says and when a schedule says, in OpenAI's shape or Ollama's.

It is one of the stub servers of `tests/sim`, scripted. Which requests it is hostile to depends on nothing but the
requests, so the same run meets the same faults; but for modes that take turns, where it depends on their order.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final

from mac_runner.types import JsonObject
from tests.attacks.modes import Asked, Mode
from tests.sim.behaviour import Behaviour, Drip, Flood, Hang, Raw, Received, Reset, Say, Send, completion, echo
from tests.sim.behaviour import head as head_of
from tests.sim.ollama_server import Fault, OllamaStub, Sent, StubModel
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

MODEL: Final = "stub"
GOOD_REQUESTS: Final = 5
"""How many completions a server answers that turns hostile for good."""


class Schedule(Enum):
    """When a server is hostile."""

    NOW_AND_THEN = "now and then"
    """To the first sending of every third request, and to the second of every ninth."""
    IN_TURN = "in turn"
    """To the first sending of every second request, in one mode after the other."""
    FOR_GOOD = "for good"
    """From the sixth completion on, canaries among them."""
    BESIDE = "beside"
    """Always; a healthy server of the same model stands beside it."""
    FROM_THE_START = "from the start"
    """Always, whatever it is asked."""


@dataclass(eq=False)
class Hostility:
    """Decides, for one server, who is answered how; `hits` are the requests that it was hostile to."""

    modes: Sequence[Mode]
    schedule: Schedule
    key: str
    dice: Random
    trap: str = ""
    hits: int = 0
    is_over: bool = False
    completions: int = 0
    sendings: Counter[bytes] = field(default_factory=Counter)

    def answer(self, body: bytes, due: JsonObject, *, is_completion: bool) -> Behaviour | None:
        """What is done to a request instead of giving it the answer that is due; None where that is given."""
        if self.is_over or not self._is_hit(body, is_completion=is_completion):
            return None
        self.hits += 1
        return self.modes[(self.hits - 1) % len(self.modes)].make(
            Asked(due=due, key=self.key, trap=self.trap, dice=self.dice)
        )

    def _is_hit(self, body: bytes, *, is_completion: bool) -> bool:
        self.completions += is_completion
        if self.schedule is Schedule.FROM_THE_START:
            return True
        if not is_completion:
            return False
        if self.schedule is Schedule.NOW_AND_THEN:
            self.sendings[body] += 1
            draw = hashlib.sha256(body).digest()[0]
            return draw % 3 ** self.sendings[body] == 0 and self.sendings[body] < 3
        if self.schedule is Schedule.IN_TURN:
            self.sendings[body] += 1
            return self.sendings[body] == 1 and len(self.sendings) % 2 == 1
        return self.schedule is Schedule.BESIDE or self.completions > GOOD_REQUESTS


@contextmanager
def openai_server(hostility: Hostility) -> Iterator[str]:
    """A server of OpenAI's protocol for the time of the block; its base URL."""

    def script(received: Received) -> Behaviour:
        if received.is_canary and hostility.schedule in (Schedule.NOW_AND_THEN, Schedule.IN_TURN):
            return Say()
        due: JsonObject = json.loads(completion(echo(received), received))
        return hostility.answer(received.body, due, is_completion=True) or echo(received)

    def page(received: Received) -> Behaviour | None:
        due: JsonObject = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        return hostility.answer(received.body, due, is_completion=False)

    with in_a_thread(OpenaiServer(models=(MODEL,), script=script, page=page, keeps=False)) as server:
        yield server.url


@contextmanager
def ollama_server(hostility: Hostility) -> Iterator[str]:
    """A server of Ollama's protocol for the time of the block; its address. It wants the key of `hostility`."""

    def script(path: str, body: JsonObject, due: Sent) -> Fault | None:
        if not isinstance(due.body, dict):
            return None
        is_completion = path == "/api/chat" and bool(body["messages"])
        data = json.dumps(body, sort_keys=True).encode()
        behaviour = hostility.answer(data, due.body, is_completion=is_completion)
        return None if behaviour is None else fault_of(behaviour)

    stub = OllamaStub(models={MODEL: StubModel()}, api_key=hostility.key)
    stub.reply = lambda body: f"word {hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]}"
    stub.script = script
    with stub:
        yield stub.host


def fault_of(behaviour: Behaviour) -> Fault:
    """A behaviour as the stub of Ollama takes it."""

    async def fault(writer: asyncio.StreamWriter) -> bool:
        match behaviour:
            case Send():
                headers = behaviour.headers
                writer.write(head_of(behaviour.status, len(behaviour.body), headers) + behaviour.body)
            case Reset():
                writer.transport.abort()
                return False
            case Hang():
                await asyncio.Event().wait()
            case Raw():
                return await _poured(behaviour, writer)
            case Say() | Drip() | Flood():
                raise NotImplementedError(behaviour)
        await writer.drain()
        return True

    return fault


async def _poured(raw: Raw, writer: asyncio.StreamWriter) -> bool:
    for piece in raw.pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(raw.interval_s)
    while raw.is_endless:
        writer.write(raw.pieces[-1])
        await writer.drain()
        await asyncio.sleep(raw.interval_s)
    if raw.then == "reset":
        writer.transport.abort()
    return raw.then == "keep"
