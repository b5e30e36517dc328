"""What an environment of a generator function is made from, and the decorator that makes it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from inspect import isgeneratorfunction
from random import Random
from typing import Any, Final, TypeAlias, overload

from pydantic import BaseModel

from mac_runner.environments.generators.conversation import AskView
from mac_runner.environments.generators.table import Script, Table
from mac_runner.measures import ResultsSpec
from mac_runner.types import JsonObject

NAMES: Final = (
    *("Abel", "Bob", "Caleb", "Dora", "Eve", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo", "Maya"),
    *("Nora", "Oscar", "Petra", "Quinn", "Rosa", "Simon", "Tilda", "Ugo", "Vera", "Walter", "Xenia", "Yara", "Zoe"),
)
"""The names of seats, for a game that has none of its own."""
Player: TypeAlias = Callable[[AskView, Random], str]
"""A scripted player: from what it was asked and has heard to a reply."""
Seats: TypeAlias = int | Callable[[Any], int] | None
"""How many seats a game has: a number, or a function of its settings; None: one for each agent definition."""
Rewards: TypeAlias = Callable[[JsonObject, str], dict[str, float]]
"""From an outcome and the name of an agent to its rewards by name."""


@dataclass(eq=False)
class Game:
    """A generator function with all that its environment is made from. Called with a table it is the function.

    Raises TypeError for what cannot be such.
    """

    script: Script
    settings: type[BaseModel] | None = None
    players: Mapping[str, Player] | None = None
    seats: Seats = None
    names: Sequence[str] = NAMES
    results: Callable[[], ResultsSpec] | None = None
    rewards: Rewards | None = None

    def __post_init__(self) -> None:
        if not isgeneratorfunction(self.script):
            raise TypeError(f"game decorates a generator function; {_named(self.script)} has no `yield`")
        if self.settings is not None and not _is_model(self.settings):
            raise TypeError(f"game: settings is {_named(self.settings)}; give a pydantic model, the class itself")
        if self.players is not None:
            _refuse_players(self.players)
        _refuse_names(self.names)
        self.names = tuple(self.names)
        update_wrapper(self, self.script)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.script.__name__

    def __call__(self, table: Table) -> Generator[Any, Any, Any]:
        """The generator over `table`, such as a test walks through by hand."""
        return self.script(table)


@overload
def game(script: Script, /) -> Game: ...


@overload
def game(
    *,
    settings: type[BaseModel] | None = None,
    players: Mapping[str, Player] | None = None,
    seats: Seats = None,
    names: Sequence[str] = NAMES,
    results: Callable[[], ResultsSpec] | None = None,
    rewards: Rewards | None = None,
) -> Callable[[Script], Game]: ...


def game(script: Script | None = None, /, **made_from: Any) -> Game | Callable[[Script], Game]:
    """Make an environment of a generator function: `@game`, or `@game(settings=Model, seats=2)`.

    `settings` is a pydantic model that checks `settings:` of the experiment file, and is `table.settings`. `players`
    are the scripted players besides `random`, by name. `seats` is how many take part, a number or a function of the
    settings; agent definitions rotate over the seats, which have `names`. Without `seats` every agent definition takes
    part once, under its own name. `results` says how outcomes are counted, in place of the general tables;
    `rewards(outcome, agent)` what an outcome is worth to an agent, in place of its values by agent.

    Raises TypeError where it decorates something else than a generator function.
    """

    def decorate(function: Script) -> Game:
        return Game(function, **made_from)

    return decorate if script is None else decorate(script)


def _refuse_players(players: object) -> None:
    if not isinstance(players, Mapping):
        raise TypeError(
            f"game: players is {_named(players)}; give a dict from names to functions `player(view, random)`"
        )
    for name, player in players.items():
        if not isinstance(name, str) or not callable(player):
            raise TypeError(f"game: the player {name!r} is {_named(player)}; give a function `player(view, random)`")


def _refuse_names(names: object) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"game: names is {_named(names)}; give a list of texts")
    for place, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or name in names[:place]:
            raise TypeError(f"game: the seat {place} has the name {name!r}; give each a text of its own")


def _is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _named(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)[:60]))
