"""A generator as a Conversation: what it asks are turns, what is answered goes back into it.

All that is asked together is one round. A turn that cannot be used is asked again in the same round. The generator goes
on when the last of a round is answered, so the order of replies leaves no trace.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from mac_runner.environments.dialogue import Dialogue
from mac_runner.environments.generators.replies import read_answer
from mac_runner.environments.generators.table import Ask, Script, Table, Told, named
from mac_runner.environments.markup import defuse
from mac_runner.environments.personas import introduction
from mac_runner.environments.reading import Problem
from mac_runner.errors import ConversationError
from mac_runner.spec import AgentDefinition, RetryConfig
from mac_runner.types import JsonObject, Message, Prompt, Reply, Task, Turn

ROUNDS_MAX: Final = 100_000
"""No conversation has more rounds of questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskView:
    """What a scripted player knows: the question, what its agent has read, and how often it was corrected."""

    ask: Ask
    told: tuple[Told, ...]
    attempt: int

    @property
    def heard(self) -> tuple[str, ...]:
        """What its agent has read, as texts."""
        return tuple(told.text for told in self.told)


class _Answer(NamedTuple):
    value: Any = None
    is_default: bool = False


_NONE: Final = _Answer()


@dataclass(slots=True)
class _Open:
    """A question with its answer, once the turn with this key has given it."""

    ask: Ask
    answer: _Answer = _NONE
    turn: str = ""


@dataclass(slots=True)
class _Heard:
    """What an agent was told of the first `count` texts of the game."""

    count: int = 0
    told: tuple[Told, ...] = ()
    texts: list[str] = field(default_factory=list)


class GeneratorConversation(Dialogue[_Answer]):
    """The Conversation contract over one generator."""

    too_long = "what the agent was told has outgrown the context of the engine; tell less, or use a larger one"

    def __init__(
        self,
        script: Script,
        task: Task,
        settings: Any,
        *,
        kind: str,
        retry: RetryConfig,
        definitions: Mapping[str, AgentDefinition] = MappingProxyType({}),
    ) -> None:
        super().__init__(task, retry)
        self._table = Table(task, settings)
        self._definitions = definitions
        self._kind = kind
        self._round = 0
        self._open: list[_Open] = []
        self._is_list = False
        self._outcome: JsonObject | None = None
        self._digest = hashlib.sha256()
        self._heard: defaultdict[str, _Heard] = defaultdict(_Heard)
        self._told_by: list[str | None] = []
        """Of each text that was told, the turn whose answer came just before; None at the beginning and where several
        answers came together. An agent's own answer is of its turn."""
        generator = script(self._table)
        if not isinstance(generator, Generator):
            raise ConversationError(f"{kind} is no generator: it has no `yield`, or it returned {named(generator)}")
        self._generator = generator
        if not self._step(partial(next, generator)):
            self._advance([])

    @property
    def outcome(self) -> JsonObject | None:
        """What the generator returned, with the `kind` of the environment."""
        return self._outcome

    @property
    def rounds_completed(self) -> int:
        """How often all that was asked together was answered."""
        return self._round

    def turns(self) -> tuple[Turn, ...]:
        """One for each question that has no answer yet."""
        return tuple(
            self._turn(one.ask.agent, round=self._round, place=place)
            for place, one in enumerate(self._open)
            if not one.turn
        )

    def prompt(self, turn: Turn) -> Prompt:
        """The rules, all that the agent has read, and the question; each prompt begins like the one before it."""
        one = self._of(turn)
        heard = self._heard_by(turn.agent)
        problem = self._last_flaw(turn.agent)
        correction = (f"Your last reply could not be used: {defuse(problem)}. Try again.",) if problem else ()
        asked = "\n\n".join([*heard.texts, one.ask.text, *_form(one.ask), *correction])
        return Prompt(
            messages=(Message(role="system", content=self._system(turn.agent)), Message(role="user", content=asked)),
            view=AskView(ask=one.ask, told=heard.told, attempt=turn.attempt),
            choices=None if one.ask.choices is None else tuple(one.ask.choices),
            schema=one.ask.json_schema,
        )

    def _read(self, turn: Turn, reply: Reply) -> _Answer | Problem:
        found = read_answer(self._of(turn).ask, reply)
        return found if isinstance(found, Problem) else _Answer(found)

    def _apply(self, turn: Turn, found: _Answer) -> str:
        return self._answered(turn, found)

    def _default(self, turn: Turn, problem: Problem) -> str:
        return self._answered(turn, _Answer(self._of(turn).ask.default, is_default=True))

    def _answered(self, turn: Turn, answer: _Answer) -> str:
        """Keep an answer, and return it in words; with the last one of a round the generator goes on."""
        one, shown = self._of(turn), _shown(answer.value)
        one.answer, one.turn = answer, turn.key
        if all(each.turn for each in self._open):
            self._close_round()
        return shown

    def record(self) -> JsonObject:
        """Who took part, and all messages of the game."""
        return {
            "participants": [
                {"agent": agent.agent_id, "definition": agent.definition} for agent in self._agents.values()
            ],
            "events": [
                {**_event(told), "turn": turn} for told, turn in zip(self._table.told, self._told_by, strict=True)
            ],
        }

    def fingerprint(self) -> str:
        """Digest of all answers so far and of the corrections under way: the generator's state follows from them."""
        digest = self._digest.copy()
        pending = self._pending()
        waiting = [
            [one.ask.agent, one.turn, _shown(one.answer.value), pending.get(one.ask.agent, [])] for one in self._open
        ]
        digest.update(json.dumps([self._round, waiting, self._outcome]).encode("ascii"))
        return digest.hexdigest()

    def _of(self, turn: Turn) -> _Open:
        return self._open[turn.place]

    def _heard_by(self, agent: str) -> _Heard:
        """All that an agent was told. It is kept: a prompt begins like the one before it."""
        heard = self._heard[agent]
        new = [told for told in self._table.told[heard.count :] if told.to is None or agent in told.to]
        heard.count = len(self._table.told)
        heard.told += tuple(new)
        heard.texts += (told.text for told in new)
        return heard

    def _system(self, agent: str) -> str:
        definition = self._definitions.get(self._agents[agent].definition)
        who = f"You are {agent}." if definition is None else introduction(agent, definition)
        parts = (self._table.rules, who, self._table.private.get(agent), definition and definition.system)
        return "\n\n".join(part for part in parts if part)

    def _close_round(self) -> None:
        for one in self._open:
            self._digest.update(json.dumps([one.ask.agent, one.ask.text, _shown(one.answer.value)]).encode("ascii"))
            if one.ask.is_remembered and not one.answer.is_default:
                self._table.tell(_remembered(one), to=[one.ask.agent], when="Own")
                self._told_by.append(one.turn)
        answers = [one.answer.value for one in self._open]
        self._advance(answers if self._is_list else answers[0])

    def _advance(self, answer: Any) -> None:
        """Run the generator to its next question or its end, past empty lists of questions."""
        while True:
            self._round += 1
            if self._round > ROUNDS_MAX:
                raise ConversationError(f"more than {ROUNDS_MAX} rounds of questions; does the generator end?")
            if self._step(partial(self._generator.send, answer)):
                return
            answer = []

    def _step(self, step: Callable[[], Any]) -> bool:
        """Run the generator to its next yield; whether it asks something now or has ended.

        Raises ConversationError for what it may not yield.
        """
        told = len(self._table.told)
        turn = self._open[0].turn if len(self._open) == 1 else None
        try:
            asked = step()
        except StopIteration as end:
            self._open = []
            self._outcome = self._ended(end.value)
            return True
        finally:
            for each in self._table.told[told:]:
                self._told_by.append(turn)
                self._digest.update(json.dumps(_event(each)).encode("ascii"))
        self._is_list = isinstance(asked, list | tuple)
        asks = list(asked) if self._is_list else [asked]
        self._check(asks)
        self._open = [_Open(ask=ask) for ask in asks]
        return bool(asks)

    def _check(self, asks: Sequence[object]) -> None:
        names: list[str] = []
        for ask in asks:
            if not isinstance(ask, Ask):
                raise ConversationError(f"{self._kind} yielded {named(ask)}; yield an Ask, or a list of them")
            if flaw := ask.flaw():
                raise ConversationError(f"{self._kind} yielded an Ask to {ask.agent!r} that cannot be asked: {flaw}")
            if ask.agent not in self._agents:
                raise ConversationError(f"{self._kind} asks {ask.agent!r}; there are {', '.join(self._agents)}")
            names.append(ask.agent)
        if len(set(names)) < len(names):
            raise ConversationError(
                f"{self._kind} asks an agent twice at once; yield the questions one after the other"
            )

    def _ended(self, value: Any) -> JsonObject:
        found = {} if value is None else value
        if not isinstance(found, dict):
            raise ConversationError(f"{self._kind} returned {named(found)}; return a dict: the outcome")
        try:
            plain: JsonObject = json.loads(json.dumps({**found, "kind": self._kind}, allow_nan=False))
        except (TypeError, ValueError) as fault:
            raise ConversationError(f"{self._kind} returned an outcome that is not JSON: {fault}") from fault
        return plain


def _form(ask: Ask) -> tuple[str, ...]:
    """What an answer has to look like, in words."""
    if (schema := ask.json_schema) is not None:
        return (f"Reply with one JSON object of this schema and nothing else: {json.dumps(schema)}",)
    if ask.choices is not None:
        return (f"Reply with exactly one of: {', '.join(ask.choices)}",)
    return ()


def _remembered(one: _Open) -> str:
    """What an agent reads of its own answer later on: the end of the prompt that it answered, so that a cache has it.

    A schema is left out, because it is long.
    """
    form = _form(one.ask) if one.ask.schema is None else ()
    return "\n\n".join((one.ask.text, *form, f"You answered: {_shown(one.answer.value)}"))


def _event(told: Told) -> JsonObject:
    audience: Any = "all" if told.to is None else sorted(told.to)
    return {"when": told.when, "audience": audience, "text": told.text, "data": told.data}


def _shown(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, default=_plain, sort_keys=True)


def _plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
