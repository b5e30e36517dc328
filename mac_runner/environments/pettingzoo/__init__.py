"""The environments `pettingzoo:MODULE`: games with the AEC interface of the library PettingZoo, made replayable.

Nothing of the library is imported before a game is played or a run of it is verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mac_runner.environments.adapters.environment import IGNORED, AdapterEnvironment, need_package
from mac_runner.environments.adapters.game import random_player
from mac_runner.environments.pettingzoo.game import PettingzooConfig, is_in_library, module_of, opener_of
from mac_runner.plugins import Code, find_plugin, named_version
from mac_runner.problems import Problem
from mac_runner.registry import EnvironmentSpec, ignored_settings

if TYPE_CHECKING:
    from mac_runner.config import Experiment

FAMILY: Final = "pettingzoo"


def spec_of(game: str) -> EnvironmentSpec[PettingzooConfig]:
    """The environment `pettingzoo:<game>`: a module of PettingZoo, or any module that has `env()`."""
    return EnvironmentSpec(
        section=FAMILY,
        settings=PettingzooConfig,
        description="Settings of a game with the AEC interface of PettingZoo.",
        build=lambda experiment: _build(experiment, game),
        check=_check,
        role="player",
        ignored=ignored_settings(IGNORED),
        reward_names=("won", "rewards"),
    )


def code_of(game: str, base: Path) -> Code:
    """The library, or the source of a module that is not part of it. Raises ConfigError for what is not there."""
    library = Code(FAMILY, named_version(FAMILY), "", Path())
    if is_in_library(game):
        return library
    module_of(game)
    return find_plugin("environments", f"{game}:env", base).code


def _check(_experiment: Experiment, settings: PettingzooConfig) -> Iterator[Problem]:
    names = settings.action_names
    if len({name.casefold() for name in names}) < len(names):
        yield Problem(("settings", "action_names"), "two actions have the same name; give each one of its own")


def _build(experiment: Experiment, game: str) -> AdapterEnvironment:
    need_package("pettingzoo", FAMILY, f"{FAMILY}:{game}")
    opener = opener_of(game, experiment.settings_as(PettingzooConfig))
    return AdapterEnvironment(experiment, kind=FAMILY, name=game, opener=opener, players={"random": random_player})
