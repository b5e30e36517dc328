"""A server of the OpenAI protocol whose replies take what a step model says: `python -m tests.sim.step_stub`.

It takes every step of a `SteppingLane`, at the moment at which an engine would have taken it: a machine that wakes it
late makes single replies late, not the engine slower. A reply has as many tokens as the hash of its request draws. Its
first line of output is its port.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from mac_runner.latency import StepModel
from mac_runner.types import Message, Prompt
from tests.sim.behaviour import Behaviour, Received, Say
from tests.sim.openai_server import Connection, OpenaiServer, listening
from tests.sim.stepping import Asked, SteppingLane

TOKENS: Final = (8, 40)
"""The fewest and the most tokens of a reply."""


class StepStub(OpenaiServer):
    """One lane. Requests beyond its seats wait in it."""

    def __init__(self, steps: StepModel, seats: int) -> None:
        super().__init__(slots=1 << 20, models=("stub",), script=_reply, keeps=False)
        self._lane = SteppingLane(steps, seats)
        self._asked: dict[Asked, tuple[Connection, Say, Received]] = {}
        self._worker: asyncio.Task[None] | None = None

    def _serve(
        self, connection: Connection, behaviour: Behaviour, received: Received, loop: asyncio.AbstractEventLoop
    ) -> None:
        said = cast("Say", behaviour)
        asked = Asked(_prompt(received), 1 if received.is_canary else len(said.text) // 4)
        self._asked[asked] = (connection, said, received)
        self._lane.waiting.append(asked)
        self.account.change(1, loop.time())
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while self._lane.waiting or self._lane.running:
            at_s += self._lane.begin()
            await asyncio.sleep(at_s - loop.time())
            for asked in self._lane.end():
                connection, said, received = self._asked.pop(asked)
                usage = (asked.prompt_tokens, asked.cached or 0, asked.reply_tokens)
                self._finish(connection, replace(said, usage=usage), received)


def _prompt(received: Received) -> Prompt:
    messages = cast("list[dict[str, Any]]", received.json["messages"])
    return Prompt(messages=tuple(Message(**message) for message in messages))


def _reply(received: Received) -> Say:
    digest = hashlib.sha256(received.body).hexdigest()
    least, most = TOKENS
    tokens = least + int(digest[:8], 16) % (most - least + 1)
    return Say((digest * 4)[: 4 * tokens])


@contextmanager
def serving(*, steps: StepModel, seats: int) -> Iterator[str]:
    """A server in a process of its own; its base URL."""
    numbers = ",".join(str(number) for number in steps.model_dump().values())
    words = [sys.executable, "-m", "tests.sim.step_stub", f"--steps={numbers}", f"--seats={seats}"]
    with listening(words) as (_, url):
        yield url


async def _run(steps: StepModel, seats: int) -> None:
    async with StepStub(steps, seats) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="8,0.4,0.02,0.0005", help="as StepModel has them, in milliseconds")
    parser.add_argument("--seats", type=int, default=64)
    asked = parser.parse_args()
    numbers = dict(zip(StepModel.model_fields, map(float, asked.steps.split(",")), strict=True))
    asyncio.run(_run(StepModel(**numbers), asked.seats))
