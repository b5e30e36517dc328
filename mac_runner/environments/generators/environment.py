"""An environment whose conversations are generators: its spec, and a player that answers at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mac_runner.environments.base import Policy, ignored_settings
from mac_runner.environments.generators.conversation import AskView, GeneratorConversation, Identity
from mac_runner.environments.generators.table import Script
from mac_runner.environments.generators.values import any_value
from mac_runner.errors import ConfigError, boundary
from mac_runner.measures import ResultsSpec
from mac_runner.problems import Problem
from mac_runner.registry import EnvironmentSpec
from mac_runner.section import Settings
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
Player = Callable[[AskView, Random], str]
"""A scripted player: from what it was asked and has heard to a reply."""


NAMES: Final = (
    *("Abel", "Bob", "Caleb", "Dora", "Eve", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo", "Maya"),
    *("Nora", "Oscar", "Petra", "Quinn", "Rosa", "Simon", "Tilda", "Ugo", "Vera", "Walter", "Xenia", "Yara", "Zoe"),
)
"""The names of seats, for a game that has none of its own."""
Seats: TypeAlias = int | Callable[[Any], int] | None
"""How many seats a game has: a number, or a function of its settings; None: one for each agent definition."""
Rewards: TypeAlias = Callable[[JsonObject, str], dict[str, float]]
"""From an outcome and the name of an agent to its rewards by name."""


class GeneratorEnvironment:
    """Agent definitions rotate over the seats; without seats each takes part once, in the order of the file."""

    transcript_bytes_min = _TRANSCRIPT_BYTES_MIN

    def __init__(
        self,
        experiment: Experiment,
        *,
        section: str,
        script: Script,
        settings: Settings,
        players: Mapping[str, Player],
        seats: Seats = None,
        names: Sequence[str] = NAMES,
        rewards: Rewards | None = None,
    ) -> None:
        self._kind = section
        self._script = script
        self._settings = settings
        self._retry = experiment.retry_config
        self._players = {"random": random_player, **players}
        self.rewards = rewards
        self._identities = {each.agent_id: Identity(each) for each in experiment.agent_definitions}
        self.lineup = None if seats is None else lineup_of(section, seats, settings, names)

    def open(self, task: Task) -> GeneratorConversation:
        """A conversation at its first question."""
        return GeneratorConversation(
            self._script,
            task,
            self._settings.model_copy(deep=True),  # What a script changes in them stays in its conversation.
            kind=self._kind,
            retry=self._retry,
            identities=self._identities,
        )

    def policy(self, name: str) -> Policy:
        """A scripted player: `random`, or one of the author's."""
        player = self._players.get(name)
        if player is None:
            known = ", ".join(sorted(self._players))
            raise ConfigError(f"environment {self._kind} has no policy {name!r}; it has {known}")
        return partial(_played, player)


def lineup_of(kind: str, seats: int | Callable[[Any], int], settings: Any, names: Sequence[str]) -> Lineup:
    """The seats that agent definitions rotate over. Raises ConfigError where there cannot be so many."""
    with boundary(ConfigError, f"the number of seats of environment {kind}"):
        count = seats(settings) if callable(seats) else seats
    if not _is_count(count) or not 1 <= count <= len(names):
        raise ConfigError(
            f"environment {kind} has {count!r} seats; it has names for 1 to {len(names)}: "
            "set another number, or give `names` in the decorator `game`"
        )
    return Lineup(slots=tuple(f"seat {number + 1}" for number in range(count)), names=tuple(names))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _played(player: Player, view: object, random: Random) -> str:
    assert isinstance(view, AskView)
    return player(view, random)


def random_player(view: AskView, random: Random) -> str:
    """Takes any of the choices, fills in any value of a schema, and has little to say."""
    if (schema := view.ask.json_schema) is not None:
        return json.dumps(any_value(schema, random))
    if view.ask.choices:
        return random.choice(list(view.ask.choices))
    return f"I have nothing to add, {random.randint(1, 999)}."


def generator_spec(
    section: str,
    script: Script,
    settings: type[Settings],
    *,
    players: Mapping[str, Player] | None = None,
    seats: Seats = None,
    names: Sequence[str] = NAMES,
    needs: str = "",
    check: Callable[[Experiment, Settings], Iterable[Problem]] = lambda _experiment, _settings: (),
    results: Callable[[], ResultsSpec] | None = None,
    rewards: Rewards | None = None,
) -> EnvironmentSpec[Settings]:
    """The `SPEC` of an environment that `script` plays.

    `section` is its name in the registry and the key of its settings; `needs` and `check` are those of
    `EnvironmentSpec`, `players` the scripted players besides `random`; `seats`, `names` and `rewards` are
    those of `game`.
    """
    return EnvironmentSpec(
        section=section,
        settings=settings,
        description=f"Settings of the environment `{section}`.",
        build=lambda experiment: GeneratorEnvironment(
            experiment,
            section=section,
            script=script,
            settings=experiment.settings_as(settings),
            players=players or {},
            seats=seats,
            names=names,
            rewards=rewards,
        ),
        needs=needs,
        check=check,
        ignored=lambda experiment, _settings: ignored_settings(experiment, role="player", keys=_IGNORED),
        honours=("system",),
        results=results,
    )
