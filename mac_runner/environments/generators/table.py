"""What the author of a generator works with: `Ask`, which it yields, and the `Table` it is given.

A generator is a function of a table. It yields an `Ask`, or a list of them that are asked together, and gets back the
answer, or their list. What it returns is the outcome::

    def duel(table):
        table.rules = "Rock, paper, scissors."
        first, second = yield [Ask(name, "Your sign?", choices=SIGNS) for name in table.agents]
        table.tell(f"{table.agents[0]} shows {first}.", when="End")
        return {"winner": beats(first, second)}

It must be deterministic: it may use no clock, no file, no global state, and no chance but `table.random`. A resume and
`verify` run it again from its recorded replies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from mac_runner.types import JsonObject, JsonValue, Task, stable_hash

TOLD_MAX: Final = 100_000
"""No conversation tells more than this, so one that never ends fails alone."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to one agent.

    Without `choices`, `schema` or `read` the answer is the words of the reply, on one line and harmless to other
    readers. With `choices` it is one of them; with `schema` a JSON object, whose keys are checked against `required`;
    `read` makes the answer of that and raises ValueError with a reason when it cannot be used. The agent is then asked
    again with the reason, `retry_config.max_retries` times, and in the end the answer is `default`.
    """

    agent: str
    text: str
    choices: Sequence[str] | None = None
    schema: Mapping[str, JsonValue] | None = None
    read: Callable[[Any], Any] | None = None
    default: Any = None
    is_remembered: bool = True
    """Whether the agent reads its own answer in later prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something that was told: to whom (None: all), when, in words, and as data for readers of the record."""

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

    def tell(self, text: str, *, to: Sequence[str] | None = None, when: str = "", **data: JsonValue) -> None:
        """Have agents read `text` from now on: all, or those in `to`. Raises ValueError for a name of no agent.

        `when` and `data` are for readers of the transcript.
        """
        unknown = [name for name in to or () if name not in self.agents]
        if unknown:
            raise ValueError(f"tell: there is no agent {unknown[0]!r}; there are {', '.join(self.agents)}")
        if len(self.told) >= TOLD_MAX:
            raise ValueError(f"more than {TOLD_MAX} things were told; does the generator end?")
        self.told.append(Told(text=text, to=None if to is None else frozenset(to), when=when, data=dict(data)))

    def random(self, purpose: str) -> Random:
        """A source of chance for one purpose: the same for the same seed and purpose, whatever was drawn elsewhere."""
        return Random(stable_hash(self._seed, "table", purpose))  # noqa: S311 - chance of a game, not a secret
