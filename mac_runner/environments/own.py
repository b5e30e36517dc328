"""An environment of what a user's code defines."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from mac_runner.environments.generators import generator_spec
from mac_runner.errors import ConfigError
from mac_runner.registry import ENVIRONMENTS, EnvironmentSpec, environment_specs
from mac_runner.section import NAME_PATTERN, Section

ALLOWED: Final = "a generator function `script(table)`, or an EnvironmentSpec"


class NoSettings(Section):
    """The settings of an environment that has none."""


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
    return spec


def _spec_of(name: str, value: object) -> EnvironmentSpec[Any]:
    if inspect.isgeneratorfunction(value):
        return generator_spec(value.__name__, value, NoSettings)
    raise ConfigError(f"{name} is {_described(value)}, which is no environment; allowed: {ALLOWED}")


def _described(value: object) -> str:
    if inspect.isfunction(value):
        return f"the function {value.__name__!r} without a `yield`"
    if inspect.isclass(value):
        return f"the class {value.__name__!r}"
    return f"a value of type {type(value).__name__!r}"
