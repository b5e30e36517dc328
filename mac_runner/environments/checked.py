"""Conversations of a user's own code, checked at each call.

The runner acts on what a conversation gives. Something else than the contract promises would end the run elsewhere, far
from its cause. Here it fails its conversation, in words for its author. So does an error of our own tree that it
raises, whatever it means elsewhere, and a call that takes too long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack

from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, ShortageError, boundary, name_of, text_of
from mac_runner.steps import StepLimit, step_limit
from mac_runner.types import JsonObject, Lineup, Message, Prompt, Receipt, ReceiptKind, Reply, Task, Turn

if TYPE_CHECKING:
    from mac_runner.environments.base import Conversation, Environment, Policy
    from mac_runner.registry import Experiment

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NUMBER_MAX: Final = 2**53
"""What every reader of JSON takes for a whole number."""
_NOBODY: Final = frozenset[str]()
_ROLES: Final = ("system", "user", "assistant")


def build_environment(experiment: Experiment) -> Environment:
    """The environment that an experiment names. Raises ConfigError where its code is not here, or cannot play it."""
    spec = experiment.spec
    if experiment.is_builtin:
        return spec.build(experiment)
    with boundary(ConfigError, f"environment {experiment.conversation_config.environment} cannot be set up"):
        limit = step_limit(experiment.conversation_config.step_limit_s)
        environment: Environment = CheckedEnvironment(spec.build(experiment), spec.section, limit)
    return environment


class CheckedEnvironment:
    """An environment that is not built in. `limit` bounds each step of its code."""

    def __init__(self, environment: Environment, kind: str, limit: StepLimit) -> None:
        self._environment = environment
        self._kind = kind
        self._limit = limit

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
        steps = _Steps(task.task_id, self._limit)
        return CheckedConversation(steps.run(self._environment.open, task), task, self._kind, steps)

    def policy(self, name: str) -> Policy:
        """That of the environment; its replies are steps too."""
        return _LimitedPlayer(self._environment.policy(name), name, self._limit)

    def __getattr__(self, name: str) -> Any:
        """What the contract leaves to the environment."""
        return getattr(self._environment, name)


@dataclass(frozen=True, slots=True)
class _LimitedPlayer:
    """A scripted player whose replies are steps. Two of the same function are the same, so they share an engine."""

    player: Policy
    name: str
    limit: StepLimit

    def __call__(self, view: object, random: Random) -> str:
        return self.limit.run(f"the player {self.name}", self.player, view, random)


class _Steps:
    """Calls into the code of one conversation."""

    def __init__(self, of: str, limit: StepLimit) -> None:
        self._of = of
        self._limit = limit

    def run(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """What a call returns. Of our own errors it raises ConversationError alone, and that a process lacks."""
        try:
            return self._limit.run(self._of, call, *args)
        except ShortageError:
            raise
        except MacRunnerError as fault:
            raise ConversationError(text_of(fault) or name_of(fault)) from fault


class CheckedConversation:
    """A conversation; what it gives is of the promised types, and can be sent and written down."""

    def __init__(self, conversation: Conversation, task: Task, kind: str, steps: _Steps) -> None:
        self._conversation = conversation
        self._agents = frozenset(agent.agent_id for agent in task.agents)
        self._kind = kind
        self._steps = steps
        self._answered = set[str]()

    @property
    def outcome(self) -> JsonObject | None:
        """None, or an outcome of the right kind that is plain JSON."""
        found = self._steps.run(lambda: self._conversation.outcome)
        if found is None:
            return None
        plain = {"kind": self._kind, **_plain(_is(found, dict, "outcome"), "outcome")}
        if plain["kind"] != self._kind:
            raise ConversationError(f"outcome has the kind {plain['kind']!r}; it is {self._kind!r}")
        return plain

    @property
    def rounds_completed(self) -> int:
        """A number."""
        return _is_count(self._steps.run(lambda: self._conversation.rounds_completed), "rounds_completed")

    def turns(self) -> tuple[Turn, ...]:
        """Turns of agents that take part, each once."""
        found = self._steps.run(lambda: tuple(self._conversation.turns()))
        for turn in found:
            _is(turn, Turn, "turns()")
            if not _has_place(turn):
                for name in ("round", "place", "step", "attempt"):
                    _is_count(getattr(turn, name), f"turns(): `{name}`")
            if turn.after != _NOBODY:
                _are(turn.after, str, "turns(): `after`")
            if turn.agent not in self._agents:
                raise ConversationError(f"turns() names {turn.agent!r}; there are {', '.join(sorted(self._agents))}")
        keys = {turn.key for turn in found}
        if len(keys) < len(found):
            raise ConversationError("turns() has a turn twice; a turn is one by its round, agent, step and attempt")
        if not keys.isdisjoint(self._answered):
            # Its seed would be the same, so it might go on for ever.
            again = min(keys & self._answered)
            raise ConversationError(f"turns() has {again} again, which was answered; raise its round, step or attempt")
        return found

    def prompt(self, turn: Turn) -> Prompt:
        """A prompt that can be sent."""
        prompt = _is(self._steps.run(self._conversation.prompt, turn), Prompt, "prompt()")
        for message in _are(prompt.messages, Message, "prompt(): `messages`"):
            _is(message.content, str, "prompt(): `content`")
            if message.role not in _ROLES:
                raise ConversationError(f"prompt() has the role {message.role!r}; allowed: {', '.join(_ROLES)}")
        if prompt.choices is not None:
            _are(prompt.choices, str, "prompt(): `choices`")
        if prompt.schema is not None:
            _plain(_is(prompt.schema, Mapping, "prompt(): `schema`"), "prompt(): `schema`")  # type: ignore[type-abstract]
        return prompt

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """A receipt."""
        receipt = _is(self._steps.run(self._conversation.receive, turn, reply), Receipt, "receive()")
        _is(receipt.kind, ReceiptKind, "receive(): `kind`")
        _is(receipt.detail, str, "receive(): `detail`")
        if receipt.cause is not None:
            _is(receipt.cause, str, "receive(): `cause`")
        self._answered.add(turn.key)
        return receipt

    def record(self) -> JsonObject:
        """Plain JSON."""
        return _plain(_is(self._steps.run(self._conversation.record), dict, "record()"), "record()")

    def fingerprint(self) -> str:
        """A text."""
        return _is(self._steps.run(self._conversation.fingerprint), str, "fingerprint()")

    def __getattr__(self, name: str) -> Any:
        """What the contract leaves to the conversation."""
        return getattr(self._conversation, name)


def _is(value: object, kind: type[T], what: str) -> T:
    if isinstance(value, kind):
        return value
    raise ConversationError(f"{what} gave a value of type {type(value).__name__!r}; it gives a {kind.__name__}")


def _has_place(turn: Turn) -> bool:
    """Whether its numbers are such. Written out, because each reply has all open turns looked at."""
    return (
        type(turn.round) is type(turn.place) is type(turn.step) is type(turn.attempt) is int
        and 0 <= turn.round <= _NUMBER_MAX
        and 0 <= turn.place <= _NUMBER_MAX
        and 0 <= turn.step <= _NUMBER_MAX
        and 0 <= turn.attempt <= _NUMBER_MAX
    )


def _is_count(value: object, what: str) -> int:
    count = _is(value, int, what)
    if not 0 <= count <= _NUMBER_MAX:
        raise ConversationError(f"{what} gave a number that is less than 0, or more than 2**53")
    return count


def _are(values: object, kind: type[T], what: str) -> Collection[T]:
    if not isinstance(values, tuple | list | frozenset | set):
        raise ConversationError(f"{what} is of type {type(values).__name__!r}; give several of {kind.__name__}")
    return [_is(value, kind, what) for value in values]


def _plain(value: Mapping[str, object], what: str) -> JsonObject:
    try:
        plain: JsonObject = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as fault:
        raise ConversationError(
            f"{what} is not JSON: {text_of(fault)}; give texts, numbers, lists and mappings"
        ) from fault
    return plain
