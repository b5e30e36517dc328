"""A server on a real socket that is hostile as a mode says and when a schedule says, in OpenAI's shape or Ollama's.

It is one of the stub servers of `tests/sim`, scripted. Which requests it is hostile to depends on nothing but the
requests, so the same run meets the same faults; but for modes that take turns, where it depends on their order.
"""

from __future__ import annotations

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
from tests.sim.behaviour import Behaviour, Received, Say, Send, completion, echo
from tests.sim.ollama_server import OllamaServer, StubModel
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

    def look(received: Received, due: Send) -> Behaviour | None:
        is_completion = received.path == "/api/chat" and bool(received.json["messages"])
        return hostility.answer(asked_of(received), json.loads(due.body), is_completion=is_completion)

    def answer(received: Received) -> Say:
        return Say(f"word {hashlib.sha256(asked_of(received)).hexdigest()[:12]}")

    stub = OllamaServer(shelf={MODEL: StubModel()}, api_key=hostility.key, look=look, answer=answer, keeps=False)
    with in_a_thread(stub):
        yield stub.host


def asked_of(received: Received) -> bytes:
    """What a request asks for, in whatever order."""
    return json.dumps(received.json, sort_keys=True).encode() if received.body else b""
