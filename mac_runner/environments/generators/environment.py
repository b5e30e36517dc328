"""An environment of a generator function: what it is made from, the decorator, its spec, and a random player."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from inspect import isgeneratorfunction
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from pydantic import BaseModel

from mac_runner.environments.base import Conversation, Policy, player_of
from mac_runner.environments.generators.conversation import AskView, GeneratorConversation
from mac_runner.environments.generators.replies import any_value
from mac_runner.environments.generators.table import Script, Table
from mac_runner.errors import ConfigError, boundary
from mac_runner.measures import ResultsSpec
from mac_runner.problems import Problem
from mac_runner.registry import EnvironmentSpec, ignored_settings
from mac_runner.section import NoSettings
from mac_runner.types import JsonObject, Lineup, Task

if TYPE_CHECKING:
    from mac_runner.config import Experiment

_TRANSCRIPT_BYTES_MIN: Final = 1_000
"""A question and its answer, and what a transcript has besides."""

_INSTEAD: Final = "leave it out, or give the environment a setting of its own"
_IGNORED: Final = {
    "role_specific_config.speak_after_within_round": _INSTEAD,
    "role_specific_config.visible_to": _INSTEAD,
}

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
        model: object = self.settings
        if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"game: settings is {_named(model)}; give a pydantic model, the class itself")
        players: object = {} if self.players is None else self.players
        if not isinstance(players, Mapping):
            what = "give a dict from names to functions `player(view, random)`"
            raise TypeError(f"game: players is {_named(players)}; {what}")
        for name, player in players.items():
            if not isinstance(name, str) or not callable(player):
                raise TypeError(
                    f"game: the player {name!r} is {_named(player)}; give a function `player(view, random)`"
                )
        names: object = self.names
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise TypeError(f"game: names is {_named(names)}; give a list of texts")
        for place, name in enumerate(names):
            if not isinstance(name, str) or not name.strip() or name in names[:place]:
                raise TypeError(f"game: the seat {place} has the name {name!r}; give each a text of its own")
        self.names = tuple(names)
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


def _named(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)[:60]))


class AuthorEnvironment:
    """Conversations that code of an author begins with a task and the settings.

    Agent definitions rotate over the seats; without seats each takes part once, in the order of the file.
    """

    transcript_bytes_min = _TRANSCRIPT_BYTES_MIN

    def __init__(
        self,
        kind: str,
        opener: Callable[[Task, Any], Conversation],
        settings: BaseModel,
        *,
        players: Mapping[str, Callable[[Any, Random], str]],
        seats: Seats,
        names: Sequence[str],
        rewards: Rewards | None,
    ) -> None:
        """Raises ConfigError where there cannot be so many seats."""
        self._kind = kind
        self._opener = opener
        self._settings = settings
        self._players = players
        self.rewards = rewards
        self.lineup = None if seats is None else _lineup(kind, seats, settings, names)

    def open(self, task: Task) -> Conversation:
        """A conversation at its beginning."""
        return self._opener(task, self._settings.model_copy(deep=True))  # What is changed in them stays in it.

    def policy(self, name: str) -> Policy:
        """A scripted player."""
        return player_of(self._kind, self._players, name)


def generator_environment(experiment: Experiment, kind: str, game: Game) -> AuthorEnvironment:
    """The environment that a game is; `random` is one of its players."""
    opener = partial(
        GeneratorConversation,
        game.script,
        kind=kind,
        retry=experiment.retry_config,
        definitions={each.agent_id: each for each in experiment.agent_definitions},
    )
    return AuthorEnvironment(
        kind,
        opener,
        experiment.settings_as(game.settings or NoSettings),
        players={"random": random_player, **(game.players or {})},
        seats=game.seats,
        names=game.names,
        rewards=game.rewards,
    )


def _lineup(kind: str, seats: int | Callable[[Any], int], settings: BaseModel, names: Sequence[str]) -> Lineup:
    with boundary(ConfigError, f"the number of seats of environment {kind}"):
        count: object = seats(settings) if callable(seats) else seats
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(names):
        raise ConfigError(
            f"environment {kind} has {count!r} seats; it has names for 1 to {len(names)}: "
            "set another number, or give `names` in the decorator `game`"
        )
    return Lineup(slots=tuple(f"seat {number + 1}" for number in range(count)), names=tuple(names))


def random_player(view: AskView, random: Random) -> str:
    """Takes any of the choices, fills in any value of a schema, and has little to say."""
    if (schema := view.ask.json_schema) is not None:
        return json.dumps(any_value(schema, random))
    if view.ask.choices:
        return random.choice(list(view.ask.choices))
    return f"I have nothing to add, {random.randint(1, 999)}."


def generator_spec(
    section: str,
    game: Game,
    *,
    needs: str = "",
    check: Callable[[Experiment, Any], Iterable[Problem]] = lambda _experiment, _settings: (),
) -> EnvironmentSpec[Any]:
    """The `SPEC` of an environment that a game is.

    `section` is its name in the registry and the key of its settings; `needs` and `check` are those of
    `EnvironmentSpec`.
    """
    return EnvironmentSpec(
        section=section,
        settings=game.settings or NoSettings,
        description=f"Settings of the environment `{section}`.",
        build=lambda experiment: generator_environment(experiment, section, game),
        needs=needs,
        check=check,
        role="player",
        ignored=ignored_settings(_IGNORED),
        honours=("system",),
        results=game.results,
    )
