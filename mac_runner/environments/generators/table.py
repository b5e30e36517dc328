"""What the author of a generator works with: `Ask`, which it yields, and the `Table` it is given.

A generator is a function of a table. It yields an `Ask`, or a list of them that are asked together, and gets back the
answer, or their list. What it returns is the outcome::

    def duel(table):
        table.rules = "Rock, paper, scissors."
        first, second = yield [Ask(name, "Your sign?", choices=SIGNS) for name in table.agents]
        table.tell(f"{table.agents[0]} shows {first}.", when="End")
        return {"winner": beats(first, second)}

The decorator `game` adds settings, seats and scripted players. The function must be deterministic: it may use no clock,
no file, no global state, and no chance but `table.random`. A resume and `verify` run it again from its replies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from mac_runner.types import JsonObject, JsonValue, Task, stable_hash

TOLD_MAX: Final = 100_000
"""No conversation tells more than this, so one that never ends fails alone."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to one agent.

    Without `choices`, `schema` or `read` the answer is the words of the reply, on one line and harmless to other
    readers. With `choices` it is one of them. With a pydantic model as `schema` it is an instance of that model; with a
    JSON schema it is a JSON object, whose keys are checked against `required`. `read` makes the answer of that and
    raises ValueError with a reason when it cannot be used. The agent is then asked again with the reason,
    `retry_config.max_retries` times, and in the end the answer is `default`.
    """

    agent: str
    text: str
    choices: Sequence[str] | None = None
    schema: Mapping[str, JsonValue] | type[BaseModel] | None = None
    read: Callable[[Any], Any] | None = None
    default: Any = None
    is_remembered: bool = True
    """Whether the agent reads its own answer in later prompts."""

    def flaw(self) -> str:
        """Why it cannot be asked; empty where it can."""
        given: tuple[tuple[str, object], ...] = (("agent", self.agent), ("text", self.text))
        for name, value in given:
            if not isinstance(value, str):
                return f"its {name} is {named(value)}; give a text"
        if self.choices is not None and self.schema is not None:
            return "it has choices and a schema; give one of them"
        if self.choices is not None:
            return _flaw_of_choices(self.choices)
        if self.schema is None or self.model is not None:
            return ""
        if not isinstance(self.schema, Mapping):
            return f"its schema is {named(self.schema)}; give a pydantic model, or a JSON schema as a dict"
        return _flaw_of_json("schema", dict(self.schema))

    @property
    def model(self) -> type[BaseModel] | None:
        """The pydantic model of the answer, if it has one."""
        return self.schema if isinstance(self.schema, type) and issubclass(self.schema, BaseModel) else None

    @property
    def json_schema(self) -> Mapping[str, JsonValue] | None:
        """The JSON schema of the reply."""
        if self.schema is None or isinstance(self.schema, Mapping):
            return self.schema
        return _schema_of(self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message of the game: its readers (None: all), when, in words, and as data for readers of the record."""

    text: str
    to: frozenset[str] | None
    when: str
    data: JsonObject


Script: TypeAlias = Callable[["Table"], Generator[Any, Any, Any]]


class Table:
    """One conversation as its generator sees it.

    `rules` is the system message of all agents; `private` adds to that of one. Set both before the first question: a
    prompt that begins as the one before it is cheap, and one that does not is not.
    """

    def __init__(self, task: Task, settings: Any) -> None:
        self.agents: tuple[str, ...] = tuple(agent.agent_id for agent in task.agents)
        """Their names, in the order of their seats."""
        self.settings = settings
        """The `settings` of the experiment, as the environment's own model has them."""
        self.rules = ""
        self.private: dict[str, str] = {}
        self.told: list[Told] = []
        self._seed = task.seed

    def tell(self, text: str, *, to: str | Sequence[str] | None = None, when: str = "", **data: object) -> None:
        """Have agents read `text` from now on: all, one, or those in `to`.

        `when` and `data` are for readers of the transcript and for scripted players; no model reads them. Raises
        ValueError for a name of no agent, and for `data` that is not JSON.
        """
        if not isinstance(text, str):
            raise ValueError(f"tell: the text is {named(text)}; give a text")
        audience = None if to is None else frozenset([to] if isinstance(to, str) else to)
        unknown = sorted(map(str, (audience or frozenset()) - set(self.agents)))
        if unknown:
            raise ValueError(f"tell: there is no agent {unknown[0]!r}; there are {', '.join(self.agents)}")
        if len(self.told) >= TOLD_MAX:
            raise ValueError(f"tell: more than {TOLD_MAX} texts; does the generator end?")
        if flaw := _flaw_of_json("data", data):
            raise ValueError(f"tell: {flaw}")
        # A copy: a list that the generator changes later leaves the record as it was.
        self.told.append(Told(text=text, to=audience, when=str(when), data=json.loads(json.dumps(data))))

    def random(self, purpose: str) -> Random:
        """A source of chance for one purpose: the same for the same seed and purpose, whatever was drawn elsewhere."""
        return Random(stable_hash(self._seed, "table", purpose))  # noqa: S311 - chance of a game, not a secret


@cache
def _schema_of(model: type[BaseModel]) -> Mapping[str, JsonValue]:
    return model.model_json_schema()


def _flaw_of_choices(choices: object) -> str:
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        return f"its choices are {named(choices)}; give a list of texts"
    if not choices:
        return "its choices are empty; ask only where there is something to choose"
    wrong = [choice for choice in choices if not isinstance(choice, str) or not choice.strip()]
    if wrong:
        return f"one of its choices is {named(wrong[0])}; each is a text with at least one character"
    return "" if len(set(choices)) == len(choices) else "two of its choices are the same"


def _flaw_of_json(name: str, value: object) -> str:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as fault:
        return f"its {name} cannot be written as JSON: {fault}"
    return ""


def named(value: object) -> str:
    """What an author gave in place of something else, for a message: its type and how it begins."""
    return f"{type(value).__name__} {value!r:.60}"
