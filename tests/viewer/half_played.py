"""A run of which a part has ended and the rest goes on only when the test says so, however fast the machine is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mac_runner.types import JsonObject
from tests.cli.lab import discussion
from tests.sim.behaviour import Behaviour, Hang, Received, Say, echo
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

REPLIES = 3
"""So many replies has each conversation that waits."""


class Engine:
    """Answers the first conversation, and the others up to a point; all of them once it `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = False
        self.url = ""
        self._asked = Counter[str]()

    def __call__(self, received: Received) -> Behaviour:
        if received.is_canary:
            return Say()
        task_id = received.headers["x-request-id"].partition("/")[0]
        self._asked[task_id] += 1
        waits = self._asked[task_id] > REPLIES and not task_id.endswith("-000000")
        return Hang() if waits and not self.goes_on else echo(received)

    def experiment(self, name: str, conversations: int) -> JsonObject:
        """Discussions of more turns than that."""
        config: JsonObject = {"model": "stub", "base_urls": [self.url], "max_in_flight": 4 * conversations}
        model: JsonObject = {"backend": "openai", "openai_config": config}
        return discussion(model, name, conversations=conversations, max_rounds=4)


@contextmanager
def engine() -> Iterator[Engine]:
    """An engine for the time of the block."""
    found = Engine()
    with in_a_thread(OpenaiServer(script=found, keeps=False)) as server:
        found.url = server.url
        yield found
