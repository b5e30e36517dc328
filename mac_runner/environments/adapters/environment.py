"""An environment that plays a game of another library: its settings, its conversations and its scripted players."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import Field, JsonValue

from mac_runner.environments.adapters.conversation import GameConversation
from mac_runner.environments.adapters.game import Game, GameView
from mac_runner.environments.base import Policy, player_of
from mac_runner.errors import ConfigError, ConversationError, boundary
from mac_runner.extras import install_command
from mac_runner.section import IDENTITY, Section
from mac_runner.spec import ENVIRONMENT_KEY
from mac_runner.types import Lineup, Task, stable_hash

if TYPE_CHECKING:
    from mac_runner.config import Experiment

_TRANSCRIPT_BYTES_MIN: Final = 2_000
"""Two moves, and what a transcript has besides."""
_INSTEAD: Final = "leave it out: the game writes the prompts"
IGNORED: Final = {
    "persona": _INSTEAD,
    "demographics": _INSTEAD,
    "if_as_human": _INSTEAD,
    "role_specific_config.speak_after_within_round": "leave it out: the game says who moves next",
    "role_specific_config.visible_to": "leave it out: the game says who reads what",
}
"""Settings of agent definitions that change nothing in a game of another library."""

Player: TypeAlias = Callable[[GameView, Random], str]
Opener: TypeAlias = Callable[[int, int], Game]
"""Sets up a game for a number of players and a seed."""


class AdapterConfig(Section):
    """A game of another library."""

    arguments: Annotated[Mapping[str, JsonValue], IDENTITY] = {}
    """Keyword arguments of the game, such as `max_turns: 10`; a name that the game does not take is refused."""
    moves_max: Annotated[int, IDENTITY, Field(ge=1, le=20_000)] = 1_000
    """After how many moves a game is cut short. Its outcome then says so, with the rewards as they stand."""


@contextmanager
def quiet() -> Iterator[None]:
    """Drop greetings on standard output, and warnings about the age of a library.

    Both belong to the whole process, so this is for the setup of an environment and never for a conversation.
    """
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class AdapterEnvironment:
    """Every agent definition takes part once, as the player of its place in the file."""

    lineup: Lineup | None = None
    transcript_bytes_min = _TRANSCRIPT_BYTES_MIN

    def __init__(
        self, experiment: Experiment, *, kind: str, name: str, opener: Opener, players: Mapping[str, Player]
    ) -> None:
        self._kind = kind
        self._name = name
        self._moves_max = experiment.settings_as(AdapterConfig).moves_max
        self._retry = experiment.retry_config
        self._opener = opener
        self._players = players
        self._try_out(len(experiment.agent_definitions))

    def open(self, task: Task) -> GameConversation:
        """A conversation before its first move."""
        with boundary(ConversationError, f"{self._name} cannot begin"):
            game = self._opener(len(task.agents), task.seed)
        return GameConversation(
            game,
            task,
            kind=self._kind,
            name=self._name,
            moves_max=self._moves_max,
            retry=self._retry,
        )

    def policy(self, name: str) -> Policy:
        """A scripted player."""
        return player_of(f"{self._kind}:{self._name}", self._players, name)

    def _try_out(self, players: int) -> None:
        """Begin two games from one seed. Raises ConfigError where one cannot begin, or both do not begin alike."""
        seed = stable_hash("trial", self._name)
        with quiet():
            first, second = (self._opener(players, seed) for _ in range(2))
        if (first.asked, first.heard()) != (second.asked, second.heard()):
            raise ConfigError(
                f"{self._kind}:{self._name} is not deterministic: two games from one seed begin in different ways, "
                "so no run of it could be resumed or verified; seed all its chance by the seed that reset() is given"
            )


def need_package(package: str, extra: str, environment: str) -> None:
    """Raises ConfigError with the command that installs it, where a package is missing."""
    if find_spec(package) is None:
        raise ConfigError.at(
            ENVIRONMENT_KEY,
            f"{environment!r} needs the package {package}, which is not installed; `{install_command(extra)}` installs "
            "it",
        )
