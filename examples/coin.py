"""The environment `coin`: the agents call how a coin falls."""

from __future__ import annotations

import hashlib
from random import Random
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from mac_runner.environments.base import Policy
from mac_runner.errors import ConfigError
from mac_runner.measures import Measure, Share, measured
from mac_runner.registry import EnvironmentSpec
from mac_runner.section import IDENTITY, Section
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn, stable_hash

if TYPE_CHECKING:
    from mac_runner.config import Experiment

SIDES = ("heads", "tails")


class CoinConfig(Section):
    """A coin that the agents call."""

    rounds: Annotated[int, IDENTITY, Field(ge=1, le=1000)] = 3
    """How often it is tossed."""


class CoinConversation:
    """Everyone calls at once; a round ends when all have called."""

    def __init__(self, task: Task, rounds: int) -> None:
        self._task = task
        self._rounds = rounds
        self._calls: dict[tuple[int, int], str] = {}

    @property
    def rounds_completed(self) -> int:
        return len(self._calls) // len(self._task.agents)

    @property
    def outcome(self) -> JsonObject | None:
        if self.rounds_completed < self._rounds:
            return None
        right = sum(call == self._side(number) for (number, _), call in self._calls.items())
        return {"kind": "coin", "calls": len(self._calls), "right": right}

    def turns(self) -> tuple[Turn, ...]:
        now = self.rounds_completed
        return tuple(
            Turn(round=now, agent=agent.agent_id, model=agent.model, place=agent.seat)
            for agent in self._task.agents
            if now < self._rounds and (now, agent.seat) not in self._calls
        )

    def prompt(self, turn: Turn) -> Prompt:
        """Asks for a call; `view` is what a scripted player reads."""
        return Prompt(messages=(Message(role="user", content="Heads or tails?"),), view=SIDES)

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Any other word is a wrong call."""
        call = reply.text.strip().lower()
        is_call = call in SIDES
        self._calls[turn.round, turn.place] = call if is_call else "neither"
        if is_call:
            return Receipt(kind=ReceiptKind.ACT, detail=call)
        return Receipt(kind=ReceiptKind.DEFAULT, detail="neither", cause="no_side")

    def record(self) -> JsonObject:
        names = {agent.seat: agent.agent_id for agent in self._task.agents}
        return {
            "events": [
                {
                    "when": f"Toss {number + 1}",
                    "text": f"{names[seat]} calls {call}; it is {self._side(number)}.",
                    "audience": [names[seat]],
                    "data": {"call": call},
                }
                for (number, seat), call in sorted(self._calls.items())
            ]
        }

    def fingerprint(self) -> str:
        state = repr((self._task.seed, self._rounds, sorted(self._calls.items())))
        return hashlib.sha256(state.encode()).hexdigest()

    def _side(self, number: int) -> str:
        return SIDES[stable_hash(self._task.seed, "toss", number) % 2]


class Coin:
    """Every agent definition takes part once (`lineup` is None)."""

    lineup = None
    transcript_bytes_min = 1_000

    def __init__(self, experiment: Experiment) -> None:
        self._rounds = experiment.settings_as(CoinConfig).rounds

    def open(self, task: Task) -> CoinConversation:
        return CoinConversation(task, self._rounds)

    def policy(self, name: str) -> Policy:
        if name != "caller":
            raise ConfigError(f"environment coin has no policy {name!r}; it has caller")
        return _call


def _call(view: object, random: Random) -> str:
    assert isinstance(view, tuple)
    return str(random.choice(view))


RIGHT = Measure(
    place="coin.right",
    cases=lambda outcome: [((), Share(outcome["right"], outcome["calls"]))],
    title="How often is the side of the coin called?",
    value="right",
    unit="calls",
)

SPEC = EnvironmentSpec(
    section="coin",
    settings=CoinConfig,
    description="Settings of the environment `coin`.",
    build=Coin,
    results=lambda: measured(RIGHT),
)
