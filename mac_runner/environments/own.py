"""An environment of what a user's code defines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from mac_runner.environments.base import Conversation, Policy, ignored_settings, player_of
from mac_runner.environments.generators import Game, generator_spec
from mac_runner.environments.generators.environment import lineup_of
from mac_runner.environments.generators.game import NAMES, Seats
from mac_runner.errors import ConfigError
from mac_runner.registry import ENVIRONMENTS, EnvironmentSpec, environment_specs
from mac_runner.section import NAME_PATTERN, NoSettings, flaw_of_model
from mac_runner.types import Task

if TYPE_CHECKING:
    from mac_runner.config import Experiment

ALLOWED: Final = (
    "a generator function `script(table)`, one with the decorator `game`, a class of conversations that is called with "
    "a task and settings, or an EnvironmentSpec"
)
MEMBERS: Final = ("outcome", "rounds_completed", "turns", "prompt", "receive", "record", "fingerprint")
"""What a class of conversations has."""
_INSTEAD: Final = "leave it out, or make it a setting of the environment"
_IGNORED: Final = {
    "persona": _INSTEAD,
    "demographics": _INSTEAD,
    "if_as_human": _INSTEAD,
    "role_specific_config.speak_after_within_round": _INSTEAD,
    "role_specific_config.visible_to": _INSTEAD,
}


def as_spec(name: str, value: object) -> EnvironmentSpec[Any]:
    """The environment that `value` is; `name` is what an experiment calls it.

    Raises ConfigError for anything else, and for an environment whose outcomes would pass for those of a built-in one.
    """
    spec = value if isinstance(value, EnvironmentSpec) else _spec_of(name, value)
    if spec.section in ENVIRONMENTS or spec.section in (other.section for other in environment_specs().values()):
        text = f"{name}: outcomes of the kind {spec.section!r} are those of a built-in environment"
        raise ConfigError(f"{text}; give yours another name")
    if re.match(NAME_PATTERN, spec.section) is None:
        raise ConfigError(f"{name}: {spec.section!r} cannot be the kind of an outcome; give it a name of letters")
    if flaw := flaw_of_model(spec.settings):
        raise ConfigError(f"{name}: its settings cannot be read from an experiment file: {flaw}")
    return spec


def _spec_of(name: str, value: object) -> EnvironmentSpec[Any]:
    if isinstance(value, Game):
        return generator_spec(value.name, value)
    if inspect.isgeneratorfunction(value):
        if not hasattr(value, "__name__"):
            raise ConfigError(f"{name} is {_described(value)} without a name of its own; write `def` around it")
        return generator_spec(value.__name__, Game(value))
    if inspect.isclass(value):
        return _spec_of_class(name, value)
    raise ConfigError(f"{name} is {_described(value)}, which is not an environment; allowed: {ALLOWED}")


def _spec_of_class(name: str, kind: type[Any]) -> EnvironmentSpec[Any]:
    """The environment whose conversations are of this class. Raises ConfigError for what it lacks."""
    missing = [member for member in MEMBERS if not hasattr(kind, member)]
    if missing:
        raise ConfigError(
            f"{name} is the class {kind.__name__!r}, which lacks {', '.join(missing)}; write what "
            f"mac_runner.Conversation describes, or give {ALLOWED}"
        )
    settings = getattr(kind, "Settings", NoSettings)
    if not (inspect.isclass(settings) and issubclass(settings, BaseModel)):
        raise ConfigError(f"{name}: {kind.__name__}.Settings is {_described(settings)}; make it a pydantic model")
    players = getattr(kind, "players", {})
    if not isinstance(players, Mapping) or not all(map(callable, players.values())):
        raise ConfigError(f"{name}: {kind.__name__}.players maps names to functions `player(view, random)`")
    return EnvironmentSpec(
        section=kind.__name__,
        settings=settings,
        description=f"Settings of the environment `{kind.__name__}`.",
        build=lambda experiment: ClassEnvironment(experiment, kind, experiment.settings_as(settings), players),
        ignored=lambda experiment, _settings: ignored_settings(experiment, role="player", keys=_IGNORED),
    )


class ClassEnvironment:
    """Conversations of a class that is called with a task and the settings."""

    transcript_bytes_min = 1_000

    def __init__(
        self,
        experiment: Experiment,
        kind: Callable[[Task, Any], Conversation],
        settings: Any,
        players: Mapping[str, Policy],
    ) -> None:
        self._name = experiment.conversation_config.environment
        self._kind = kind
        self._settings = settings
        self._players = players
        seats: Seats = getattr(kind, "seats", None)
        names = tuple(getattr(kind, "names", NAMES))
        self.rewards = getattr(kind, "rewards", None)
        self.lineup = None if seats is None else lineup_of(self._name, seats, settings, names)

    def open(self, task: Task) -> Conversation:
        """A conversation at its beginning."""
        return self._kind(task, self._settings.model_copy(deep=True))

    def policy(self, name: str) -> Policy:
        """A scripted player of the class."""
        return player_of(self._name, self._players, name)


def _described(value: object) -> str:
    if inspect.isfunction(value):
        return f"the function {value.__name__!r} without a `yield`"
    if inspect.isclass(value):
        return f"the class {value.__name__!r}"
    return f"a value of type {type(value).__name__!r}"
