"""Modules with PettingZoo's AEC interface: how one is found, begun, and put into words."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from mac_runner.environments.adapters.chance import NUMPY_SEEDS, OwnChance
from mac_runner.environments.adapters.environment import quiet
from mac_runner.errors import ConfigError, boundary
from mac_runner.types import JsonValue

KEY: Final = ("conversation_config", "environment")
_LIBRARY: Final = "pettingzoo"
VALUES_MAX: Final = 2_000
"""The largest observation that is written out."""
_RULES_CHARS_MAX: Final = 8_000
_FRONT_MATTER: Final = re.compile(r"\A\s*---\n.*?\n---\n", re.DOTALL)
_FIGURE: Final = re.compile(r"```\{figure\}.*?```\n?|<[^>\n]{1,300}>", re.DOTALL)
_HISTORY: Final = re.compile(r"^#+ *Version History.*\Z", re.DOTALL | re.MULTILINE)


def is_in_library(game: str) -> bool:
    """Whether a game is one of PettingZoo's own modules."""
    try:
        return find_spec(f"{_LIBRARY}.{game}") is not None
    except ModuleNotFoundError:
        return False


@cache
def module_of(game: str) -> Any:
    """The module of a game: one of PettingZoo's, or any other. Raises ConfigError where it has no `env()`."""
    what = f"pettingzoo:{game} cannot be imported"
    with boundary(ConfigError, what), OwnChance(0), quiet():
        module = import_module(_full_name(game))
    if not callable(getattr(module, "env", None)):
        raise ConfigError(
            f"pettingzoo:{game}: the module {module.__name__} has no function env(); "
            "name a module with PettingZoo's AEC interface",
            key=KEY,
        )
    return module


def begun(game: str, arguments: Mapping[str, JsonValue], seed: int, chance: OwnChance) -> Any:
    """A game before its first move. Raises ConfigError where it cannot begin."""
    module = module_of(game)
    with boundary(ConfigError, f"pettingzoo:{game} cannot begin"), chance:
        env = module.env(**arguments)
        env.reset(seed=seed % NUMPY_SEEDS)
    return env


def rules_of(env: Any) -> str:
    """The documentation of a game: of its module or of its class, whichever says more."""
    kind = type(env.unwrapped)
    found = max(kind.__dict__.get("__doc__") or "", sys.modules[kind.__module__].__doc__ or "", key=len)
    text = _HISTORY.sub("", _FIGURE.sub("", _FRONT_MATTER.sub("", found)))
    return re.sub(r"\n{3,}", "\n\n", text).strip()[:_RULES_CHARS_MAX]


def in_words(observation: Any) -> str | None:
    """An observation as text, without its action mask; None where it is too large for that."""
    if isinstance(observation, Mapping):
        parts = [(str(name), in_words(value)) for name, value in observation.items() if name != "action_mask"]
        if any(words is None for _, words in parts):
            return None
        return parts[0][1] if len(parts) == 1 else "\n".join(f"{name}: {words}" for name, words in parts)
    if isinstance(observation, str):
        return observation
    if hasattr(observation, "tolist"):
        if observation.size > VALUES_MAX:
            return None
        observation = observation.tolist()
    return _rows(observation)


def _rows(value: Any) -> str:
    """Numbers row by row: a list of lists has each list on a line of its own."""
    if isinstance(value, list | tuple):
        are_rows = any(isinstance(row, list | tuple) for row in value)
        return ("\n" if are_rows else " ").join(_row(row) if are_rows else _number(row) for row in value)
    return _number(value)


def _row(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(f"({_row(one)})" if isinstance(one, list | tuple) else _number(one) for one in value)
    return _number(value)


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _full_name(game: str) -> str:
    return f"{_LIBRARY}.{game}" if is_in_library(game) else game
