"""Environments that each break one promise, and one that keeps them all; `mac-run check` names what is wrong."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mac_runner.environments.generators import Ask, Table, game
from mac_runner.section import File
from mac_runner.types import (
    JsonObject,
    Message,
    Prompt,
    Receipt,
    ReceiptKind,
    Reply,
    Task,
    Turn,
)

COUNTER = itertools.count()
SHARED: dict[str, int] = {}


class Rounds(BaseModel):
    rounds: int = 2


@game(settings=Rounds)
def good(table: Table) -> Any:
    heads = dict.fromkeys(table.agents, 0)
    for number in range(table.settings.rounds):
        calls = yield [Ask(name, "Call it.", choices=("heads", "tails"), default="tails") for name in table.agents]
        for name, call in zip(table.agents, calls, strict=True):
            heads[name] += call == "heads"
            table.tell(f"{name} calls {call}.", when=f"Toss {number}")
    return {"heads": heads}


def endless(table: Table) -> Any:
    while True:
        yield Ask(table.agents[0], "Go on?")


def lists_its_outcome(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    return ["won"]


def sets_in_its_outcome(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    return {"alive": set(table.agents)}


def yields_a_text(table: Table) -> Any:
    yield "Well?"


def asks_a_stranger(table: Table) -> Any:
    yield Ask("Zorro", "Well?")


def offers_nothing(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?", choices=[])


def tells_a_stranger(table: Table) -> Any:
    table.tell("Psst.", to=["Zorro"])
    yield Ask(table.agents[0], "Well?")


def needs_good_words(table: Table) -> Any:
    number = yield Ask(table.agents[0], "A number, please.", choices=("1", "2"))
    return {"number": int(number)}


def reads_the_clock(table: Table) -> Any:
    yield Ask(table.agents[0], "Late?")
    return {"late": time.time() < 0}


def draws_for_all(table: Table) -> Any:
    yield Ask(table.agents[0], "Lucky?")
    return {"lucky": random.choice((False, False))}


def draws_unseeded(table: Table) -> Any:
    yield Ask(table.agents[0], "Lucky?")
    return {"lucky": random.Random().random() < 0}


def reads_a_file(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    return {"size": len(Path(__file__).read_text()) > 0}


class Named(BaseModel):
    file: File


@game(settings=Named)
def reads_its_file(table: Table) -> Any:
    """This one keeps all promises."""
    yield Ask(table.agents[0], "Well?")
    return {"size": len(table.settings.file.text()) > 0}


def starts_a_process(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    return {"code": subprocess.run([sys.executable, "-S", "-c", ""], check=False).returncode}


def signals_a_process(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    os.kill(os.getpid(), 0)


def counts_calls(table: Table) -> Any:
    yield Ask(table.agents[0], f"Call number {next(COUNTER)}.")


def shares_a_variable(table: Table) -> Any:
    SHARED["turns"] = 0
    for _ in range(4):
        yield Ask(table.agents[0], "Well?")
        SHARED["turns"] += 1
    return {"turns": SHARED["turns"]}


@game(settings=Rounds)
def changes_settings(table: Table) -> Any:
    table.settings.rounds += 1
    for _ in range(table.settings.rounds):
        yield Ask(table.agents[0], "Well?")


def sets_of_names(table: Table) -> Any:
    for name in {*table.agents, "a", "b", "c", "d"} - {"a", "b", "c", "d"}:
        yield Ask(name, "Well?")


def leaves(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    sys.exit(7)


def dies(table: Table) -> Any:
    yield Ask(table.agents[0], "Well?")
    os._exit(7)


def asks_by_hash_seed(table: Table) -> Any:
    yield Ask(table.agents[int(os.environ["PYTHONHASHSEED"]) % 2], "Well?")


def is_no_generator(table: Table) -> None:
    return None


class Calls:
    """Every agent calls once: the four methods, without a fault."""

    def __init__(self, task: Task, settings: Any) -> None:
        self.task = task
        self.calls: dict[str, str] = {}

    @property
    def outcome(self) -> JsonObject | None:
        return (
            None if self.turns() else {"kind": type(self).__name__, "heads": list(self.calls.values()).count("heads")}
        )

    @property
    def rounds_completed(self) -> int:
        return int(not self.turns())

    def turns(self) -> tuple[Turn, ...]:
        return tuple(
            Turn(round=0, agent=agent.agent_id, model=agent.model, place=agent.seat)
            for agent in self.task.agents
            if agent.agent_id not in self.calls
        )

    def prompt(self, turn: Turn) -> Prompt:
        return Prompt(messages=(Message(role="user", content="Heads or tails?"),), choices=("heads", "tails"))

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        self.calls[turn.agent] = reply.text if reply.text in ("heads", "tails") else "neither"
        return Receipt(kind=ReceiptKind.ACT, detail=self.calls[turn.agent])

    def record(self) -> JsonObject:
        return {"events": [], "calls": {**self.calls}}

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(sorted(self.calls.items())).encode()).hexdigest()


class InOrder(Calls):
    def record(self) -> JsonObject:
        return {"events": [], "calls": [*self.calls]}


class Forgetful(Calls):
    asked = 0

    def prompt(self, turn: Turn) -> Prompt:
        self.asked += 1
        return super().prompt(turn)

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {self.asked}"


class Moody(Calls):
    def prompt(self, turn: Turn) -> Prompt:
        return Prompt(messages=(Message(role="user", content=f"Heads or tails? {id(object())} {next(COUNTER)}"),))


class Speechless(Calls):
    def prompt(self, turn: Turn) -> Prompt:
        return Prompt(messages=(Message(role="user", content=None),))  # type: ignore[arg-type]


class Unsendable(Calls):
    def prompt(self, turn: Turn) -> Prompt:
        return Prompt(messages=(Message(role="user", content="Heads or \ud800?"),))


class Gossiping(Calls):
    def record(self) -> JsonObject:
        return {"events": [{"when": "now", "text": "psst", "audience": ["Zorro"], "data": {}}]}


class Unwritable(Calls):
    def record(self) -> JsonObject:
        return {"events": [], "score": float("nan")}


class Misnamed(Calls):
    @property
    def outcome(self) -> JsonObject | None:
        return None if self.turns() else {"kind": "poker"}


class Strangers(Calls):
    def turns(self) -> tuple[Turn, ...]:
        return tuple(
            Turn(round=turn.round, agent=turn.agent, model="other", place=turn.place) for turn in super().turns()
        )


class Fragile(Calls):
    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        ("heads", "tails").index(reply.text)
        return super().receive(turn, reply)


class Gullible(Calls):
    def prompt(self, turn: Turn) -> Prompt:
        return Prompt(messages=(Message(role="user", content='Call it as {"side": "..."}'),))


class Stubborn(Calls):
    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        if reply.finish_reason == "overflow":
            raise RuntimeError("no shorter prompt")
        return super().receive(turn, reply)


class Restless(Calls):
    """What it makes of a reply depends on whether the prompt was asked for before."""

    def __init__(self, task: Task, settings: Any) -> None:
        super().__init__(task, settings)
        self.sent: set[str] = set()

    def prompt(self, turn: Turn) -> Prompt:
        self.sent.add(turn.key)
        return super().prompt(turn)

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        return super().receive(turn, reply if turn.key in self.sent else Reply(text="neither"))


class Incomplete:
    def turns(self) -> tuple[Turn, ...]:
        return ()
