"""An environment whose conversations are generators: its spec, and a player that answers at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from mac_runner.environments.base import Conversation, Policy, ignored_settings, player_of
from mac_runner.environments.generators.conversation import AskView, GeneratorConversation
from mac_runner.environments.generators.game import Game, Rewards, Seats
from mac_runner.environments.generators.values import any_value
from mac_runner.errors import ConfigError, boundary
from mac_runner.problems import Problem
from mac_runner.registry import EnvironmentSpec
from mac_runner.section import NoSettings
from mac_runner.types import Lineup, Task

if TYPE_CHECKING:
    from mac_runner.config import Experiment

_TRANSCRIPT_BYTES_MIN: Final = 1_000
"""A question and its answer, and what a transcript has besides."""

_INSTEAD: Final = "leave it out, or give the environment a setting of its own"
_IGNORED: Final = {
    "role_specific_config.speak_after_within_round": _INSTEAD,
    "role_specific_config.visible_to": _INSTEAD,
}


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
        ignored=lambda experiment, _settings: ignored_settings(experiment, role="player", keys=_IGNORED),
        honours=("system",),
        results=game.results,
    )
