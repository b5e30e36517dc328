"""The environments `textarena:GAME`: the games of the library TextArena, made replayable.

Nothing of the library is imported before a game is played or a run of it is verified.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from mac_runner.environments.adapters.environment import IGNORED, AdapterConfig, AdapterEnvironment, need_package
from mac_runner.plugins import Code, named_version
from mac_runner.registry import EnvironmentSpec, ignored_settings

if TYPE_CHECKING:
    from mac_runner.config import Experiment

FAMILY: Final = "textarena"


class TextarenaConfig(AdapterConfig):
    """A game of TextArena."""


def spec_of(game: str) -> EnvironmentSpec[TextarenaConfig]:
    """The environment `textarena:<game>`: the name of a game, with its version or without."""
    return EnvironmentSpec(
        section=FAMILY,
        settings=TextarenaConfig,
        description="Settings of a game of TextArena.",
        build=lambda experiment: _build(experiment, game),
        role="player",
        ignored=ignored_settings(IGNORED),
        reward_names=("won", "rewards"),
    )


def code_of(_game: str, _base: Path) -> Code:
    """The library. Raises ConfigError where it is not installed."""
    return Code(FAMILY, named_version(FAMILY), "", Path())


def _build(experiment: Experiment, game: str) -> AdapterEnvironment:
    need_package("textarena", FAMILY, f"{FAMILY}:{game}")
    from mac_runner.environments.textarena.game import opener_of
    from mac_runner.environments.textarena.players import players_of

    arguments = experiment.settings_as(TextarenaConfig).arguments
    name, opener = opener_of(game, arguments)
    return AdapterEnvironment(experiment, kind=FAMILY, name=name, opener=opener, players=players_of(name))
