"""Conversations of a user's own code, checked at each call.

The runner acts on what a conversation gives. Something else than the contract promises would end the run elsewhere, far
from its cause. Here it fails its conversation, in words for its author.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from mac_runner.errors import ConversationError
from mac_runner.types import JsonObject, Lineup, Prompt, Receipt, Reply, Task, Turn

if TYPE_CHECKING:
    from mac_runner.environments.base import Conversation, Environment, Policy

T = TypeVar("T")


class CheckedEnvironment:
    """An environment that is not built in."""

    def __init__(self, environment: Environment, kind: str) -> None:
        self._environment = environment
        self._kind = kind

    @property
    def lineup(self) -> Lineup | None:
        """That of the environment."""
        return self._environment.lineup

    @property
    def transcript_bytes_min(self) -> int:
        """That of the environment."""
        return self._environment.transcript_bytes_min

    def open(self, task: Task) -> Conversation:
        """A conversation that is checked at each call."""
        return CheckedConversation(self._environment.open(task), task, self._kind)

    def policy(self, name: str) -> Policy:
        """That of the environment."""
        return self._environment.policy(name)

    def __getattr__(self, name: str) -> Any:
        """What the contract leaves to the environment."""
        return getattr(self._environment, name)


class CheckedConversation:
    """A conversation; what it gives is of the promised types, and can be written down."""

    def __init__(self, conversation: Conversation, task: Task, kind: str) -> None:
        self._conversation = conversation
        self._agents = frozenset(agent.agent_id for agent in task.agents)
        self._kind = kind

    @property
    def outcome(self) -> JsonObject | None:
        """None, or an outcome of the right kind that is plain JSON."""
        found = self._conversation.outcome
        if found is None:
            return None
        plain = {"kind": self._kind, **self._plain(found, "outcome")}
        if plain["kind"] != self._kind:
            raise ConversationError(f"outcome has the kind {plain['kind']!r}; it is {self._kind!r}")
        return plain

    @property
    def rounds_completed(self) -> int:
        """A number."""
        return self._is(self._conversation.rounds_completed, int, "rounds_completed")

    def turns(self) -> tuple[Turn, ...]:
        """Turns of agents that take part, each once."""
        found = tuple(self._conversation.turns())
        for turn in found:
            self._is(turn, Turn, "turns()")
            if turn.agent not in self._agents:
                raise ConversationError(f"turns() names {turn.agent!r}; there are {', '.join(sorted(self._agents))}")
        if len({turn.key for turn in found}) < len(found):
            raise ConversationError("turns() has a turn twice; a turn is one by its round, agent, place and attempt")
        return found

    def prompt(self, turn: Turn) -> Prompt:
        """A prompt."""
        return self._is(self._conversation.prompt(turn), Prompt, "prompt()")

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """A receipt."""
        return self._is(self._conversation.receive(turn, reply), Receipt, "receive()")

    def record(self) -> JsonObject:
        """Plain JSON."""
        return self._plain(self._conversation.record(), "record()")

    def fingerprint(self) -> str:
        """A text."""
        return self._is(self._conversation.fingerprint(), str, "fingerprint()")

    def __getattr__(self, name: str) -> Any:
        """What the contract leaves to the conversation."""
        return getattr(self._conversation, name)

    def _is(self, value: object, kind: type[T], what: str) -> T:
        if isinstance(value, kind):
            return value
        raise ConversationError(f"{what} gave a value of type {type(value).__name__!r}; it gives a {kind.__name__}")

    def _plain(self, value: object, what: str) -> JsonObject:
        self._is(value, dict, what)
        try:
            plain: JsonObject = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as fault:
            raise ConversationError(f"{what} is not JSON: {fault}; give texts, numbers, lists and mappings") from fault
        return plain
