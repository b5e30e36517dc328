"""The environment `echo`: every agent is given a number in every round and asked to send it back.

The smallest conversation: agents speak at once, a round ends when all have spoken, and they do not hear each other. It
costs next to nothing, so a run of it takes what the runner takes, or the engine. Any model can play, even a tiny one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from mac_runner.environments.base import Policy, player_of
from mac_runner.registry import EnvironmentSpec, ignored_settings
from mac_runner.section import IDENTITY, Section
from mac_runner.types import JsonObject, Lineup, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn, stable_hash

if TYPE_CHECKING:
    from mac_runner.config import Experiment

_RULES = Message(role="system", content="Answer with the number you are given and nothing else.")
_NUMBERS = 10_000
_TURN_BYTES_MIN = 500
"""A turn in a transcript: its key, two digests, the reply, what was made of it and when."""


class EchoConfig(Section):
    """Numbers that are sent back: the smallest conversations there are, to try or to measure an engine with."""

    rounds: Annotated[int, IDENTITY, Field(ge=1, le=1000)]
    """How many numbers each agent is given, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoView:
    """What a scripted player needs to know: the number."""

    number: int


class EchoConversation:
    """The Conversation contract over who has yet to answer. Any reply will do; a wrong one is counted as such."""

    def __init__(self, task: Task, rounds: int) -> None:
        self._task = task
        self._rounds = rounds
        self._agents = {agent.agent_id: agent for agent in task.agents}
        self._waiting = [*self._agents]
        self._round = 0
        self._echoed = 0

    @property
    def outcome(self) -> JsonObject | None:
        """How many replies were the number asked for, once all rounds are over."""
        if self._waiting:
            return None
        return {"kind": "echo", "rounds": self._rounds, "echoed": self._echoed}

    @property
    def rounds_completed(self) -> int:
        """Rounds in which all have answered."""
        return self._round

    def turns(self) -> tuple[Turn, ...]:
        """One for each agent that has not answered in the present round."""
        agents = (self._agents[agent_id] for agent_id in self._waiting)
        return tuple(
            Turn(round=self._round, agent=agent.agent_id, model=agent.model, place=agent.seat) for agent in agents
        )

    def prompt(self, turn: Turn) -> Prompt:
        """The number of the turn."""
        number = self._number(turn)
        return Prompt(
            messages=(_RULES, Message(role="user", content=str(number))),
            view=EchoView(number=number),
        )

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Compare it with what was asked for."""
        is_echo = reply.text.strip() == str(self._number(turn))
        self._echoed += is_echo
        self._waiting.remove(turn.agent)
        if not self._waiting:
            self._round += 1
            self._waiting = [*self._agents] if self._round < self._rounds else []
        return Receipt(kind=ReceiptKind.ACT, detail="echo" if is_echo else "something else")

    def record(self) -> JsonObject:
        """Nothing happens but the turns themselves."""
        return {"events": []}

    def fingerprint(self) -> str:
        """Digest of how far it is."""
        state = (self._task.seed, self._round, sorted(self._waiting), self._echoed)
        return hashlib.sha256(repr(state).encode("ascii", "backslashreplace")).hexdigest()

    def _number(self, turn: Turn) -> int:
        return stable_hash(self._task.seed, turn.key) % _NUMBERS


class EchoEnvironment:
    """Every agent definition takes part once."""

    lineup: Lineup | None = None

    def __init__(self, experiment: Experiment) -> None:
        self._rounds = experiment.settings_as(EchoConfig).rounds
        self.transcript_bytes_min = self._rounds * len(experiment.agent_definitions) * _TURN_BYTES_MIN

    def open(self, task: Task) -> EchoConversation:
        """A conversation before its first answer."""
        return EchoConversation(task, self._rounds)

    def policy(self, name: str) -> Policy:
        """A scripted participant."""
        return player_of("echo", {"echo": _echo}, name)


def _echo(view: object, random: Random) -> str:
    """Sends the number back."""
    assert isinstance(view, EchoView)
    return str(view.number)


_INSTEAD: Final = "leave it out: an agent sees its number and nothing else"
_IGNORED: Final = {
    "persona": _INSTEAD,
    "demographics": _INSTEAD,
    "if_as_human": _INSTEAD,
    "role_specific_config.speak_after_within_round": "leave it out: all agents speak at once",
    "role_specific_config.visible_to": _INSTEAD,
}

SPEC = EnvironmentSpec(
    section="echo",
    settings=EchoConfig,
    description="Settings of the environment `echo`.",
    build=EchoEnvironment,
    role="participant",
    ignored=ignored_settings(_IGNORED),
    needs="rounds",
    reward_names=(),
)
