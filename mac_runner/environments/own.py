"""An environment of what a user's code defines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from mac_runner.environments.generators import Game, generator_spec
from mac_runner.environments.generators.environment import NAMES, AuthorEnvironment
from mac_runner.errors import ConfigError
from mac_runner.registry import ENVIRONMENTS, EnvironmentSpec, environment_specs, ignored_settings
from mac_runner.section import NAME_PATTERN, NoSettings, flaw_of_model

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
        build=lambda experiment: AuthorEnvironment(
            experiment.conversation_config.environment,
            kind,
            experiment.settings_as(settings),
            players=players,
            seats=getattr(kind, "seats", None),
            names=tuple(getattr(kind, "names", NAMES)),
            rewards=getattr(kind, "rewards", None),
        ),
        role="player",
        ignored=ignored_settings(_IGNORED),
    )


def _described(value: object) -> str:
    if inspect.isfunction(value):
        return f"the function {value.__name__!r} without a `yield`"
    if inspect.isclass(value):
        return f"the class {value.__name__!r}"
    return f"a value of type {type(value).__name__!r}"
