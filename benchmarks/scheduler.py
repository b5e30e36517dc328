"""What does a turn cost the scheduler? CPU microseconds per turn at 1,000 requests in flight.

Run `python -m benchmarks.scheduler`. It measures the state machine alone and the whole asyncio shell around it
(departure, prompt, reply, journal hand-over, events), with conversations, engine and recorder that do next to nothing.
The last line is one JSON row. The budget is 500 microseconds per turn, shell included.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from benchmarks.machine import row
from mac_runner.backends import Backend
from mac_runner.clock import SystemClock
from mac_runner.environments.base import Policy
from mac_runner.scheduler import Progress, RequestScheduler
from mac_runner.scheduler.attempt import Unrecorded
from mac_runner.scheduler.state import Answered, Depart, ModelReady, Open, Opened, TasksExhausted
from mac_runner.spec import RetryConfig
from mac_runner.types import (
    Agent,
    JsonObject,
    Lineup,
    Message,
    Prompt,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Request,
    Sampling,
    Task,
    TokenCount,
    Turn,
)
from tests.sim.conversations import run_conversations

AGENTS: Final = 10
ROUNDS: Final = 10
_RECEIPT = Receipt(kind=ReceiptKind.ACT, detail="said")
_PROMPT = Prompt(messages=(Message(role="user", content="x" * 4000),))


class _Conversation:
    """Ten agents speak ten times each, unheard."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.rounds_completed = 0
        self.open = _round(0)

    @property
    def outcome(self) -> JsonObject | None:
        return None if self.open else {}

    def turns(self) -> tuple[Turn, ...]:
        return self.open

    def prompt(self, turn: Turn) -> Prompt:
        return _PROMPT

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        self.open = tuple(one for one in self.open if one.place != turn.place)
        if not self.open:
            self.rounds_completed += 1
            if self.rounds_completed < ROUNDS:
                self.open = _round(self.rounds_completed)
        return _RECEIPT

    def record(self) -> JsonObject:
        return {}

    def fingerprint(self) -> str:
        return ""


def _round(number: int) -> tuple[Turn, ...]:
    return tuple(Turn(round=number, agent=f"a{seat}", model="m", place=seat) for seat in range(AGENTS))


class _Environment:
    lineup: Lineup | None = None
    transcript_bytes_min: int = 0

    def open(self, task: Task) -> _Conversation:
        return _Conversation(task.index)

    def policy(self, name: str) -> Policy:
        raise NotImplementedError


class _Engine(Backend):
    """Answers `capacity` requests at a time, each after all others had one."""

    capacity: int = 0

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    async def generate(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        return Reply(text="said", tokens=TokenCount(prompt=1000, completion=1))


def _state_s(conversations: int, capacity: int) -> float:
    """CPU seconds of the state machine alone, first come first served."""
    scheduler, live, flying, opened = RequestScheduler(), dict[int, _Conversation](), deque[Depart](), 0
    reply = Reply(text="said")
    spent_s = 0.0
    actions = scheduler.handle(ModelReady("m", capacity))
    while actions or flying:
        flying.extend(action for action in actions if isinstance(action, Depart))
        if any(isinstance(action, Open) for action in actions):
            if opened == conversations:
                event: Opened | TasksExhausted | Answered = TasksExhausted()
            else:
                live[opened] = _Conversation(opened)
                event, opened = Opened(opened, live[opened].turns(), 0), opened + 1
        elif flying:
            depart = flying.popleft()
            conversation = live[depart.conversation]
            conversation.receive(depart.turn, reply)
            event = Answered(depart.conversation, depart.turn, conversation.turns(), conversation.rounds_completed)
        else:
            break
        began_s = time.process_time()
        actions = scheduler.handle(event)
        spent_s += time.process_time() - began_s
    return spent_s


def _shell_s(conversations: int, capacity: int) -> float:
    """CPU seconds of a whole run."""
    agents = tuple(
        Agent(agent_id=f"a{seat}", definition="a", model="m", seat=seat, slot=seat, sampling=Sampling())
        for seat in range(AGENTS)
    )
    work: Iterator[tuple[Task, tuple[RecordedReply, ...]]] = (
        (Task(index=index, task_id=f"t-{index}", seed=index, agents=agents), ()) for index in range(conversations)
    )
    progress = Progress(planned=conversations)

    async def program() -> None:
        await run_conversations(
            environment=_Environment(),
            environment_name="none",
            experiment_name="benchmark",
            work=work,
            backends={"m": _Engine(capacity)},
            recorder=Unrecorded(),
            retry=RetryConfig(),
            concurrency=None,
            clock=SystemClock(),
            stop=asyncio.Event(),
            progress=progress,
        )

    began_s = time.process_time()
    asyncio.run(program())
    assert progress.finished == conversations
    return time.process_time() - began_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=1000)
    arguments = parser.parse_args()
    turns = arguments.conversations * AGENTS * ROUNDS
    state_us = 1e6 * _state_s(arguments.conversations, arguments.in_flight) / turns
    shell_us = 1e6 * _shell_s(arguments.conversations, arguments.in_flight) / turns
    print(
        f"{turns} turns at {arguments.in_flight} in flight: state {state_us:.0f} us, with shell {shell_us:.0f} us each"
    )
    print(
        row(
            benchmark="scheduler",
            in_flight=arguments.in_flight,
            turns=turns,
            state_us_per_turn=round(state_us, 1),
            shell_us_per_turn=round(shell_us, 1),
        )
    )


if __name__ == "__main__":
    main()
