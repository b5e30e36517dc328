"""The decorator that makes an environment of a generator function."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from inspect import isgeneratorfunction
from typing import Any, overload

from pydantic import BaseModel

from mac_runner.environments.generators.environment import NAMES, Player, Rewards, Seats
from mac_runner.environments.generators.table import Script, Table
from mac_runner.measures import ResultsSpec


@dataclass(eq=False)
class Game:
    """A generator function with all that its environment is made from. Called with a table it is the function."""

    script: Script
    settings: type[BaseModel] | None = None
    players: Mapping[str, Player] = field(default_factory=dict)
    seats: Seats = None
    names: Sequence[str] = NAMES
    results: Callable[[], ResultsSpec] | None = None
    rewards: Rewards | None = None

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


def game(
    script: Script | None = None,
    /,
    *,
    settings: type[BaseModel] | None = None,
    players: Mapping[str, Player] | None = None,
    seats: Seats = None,
    names: Sequence[str] = NAMES,
    results: Callable[[], ResultsSpec] | None = None,
    rewards: Rewards | None = None,
) -> Game | Callable[[Script], Game]:
    """Make an environment of a generator function: `@game`, or `@game(settings=Model, seats=2)`.

    `settings` is a pydantic model that checks `settings:` of the experiment file, and is `table.settings`. `players`
    are the scripted players besides `random`, by name. `seats` is how many take part, a number or a function of the
    settings; agent definitions rotate over the seats, which have `names`. Without `seats` every agent definition takes
    part once, under its own name. `results` says how outcomes are counted, in place of the general tables;
    `rewards(outcome, agent)` what an outcome is worth to an agent, in place of its values by agent.

    Raises TypeError where it decorates something else than a generator function.
    """

    def decorate(function: Script) -> Game:
        if not isgeneratorfunction(function):
            raise TypeError(f"game decorates a generator function; {_named(function)} has no `yield`")
        if settings is not None and not _is_model(settings):
            raise TypeError(f"game: settings is {_named(settings)}; give a pydantic model, the class itself")
        _refuse_players(players)
        _refuse_names(names)
        made = Game(function, settings, dict(players or {}), seats, tuple(names), results, rewards)
        update_wrapper(made, function)
        return made

    return decorate if script is None else decorate(script)


def _refuse_players(players: object) -> None:
    if not isinstance(players, Mapping | None):
        raise TypeError(
            f"game: players is {_named(players)}; give a dict from names to functions `player(view, random)`"
        )
    for name, player in (players or {}).items():
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
