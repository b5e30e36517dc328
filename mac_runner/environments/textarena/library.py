"""The library TextArena: its list of games, and how one is set up without network, downloads and output."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from mac_runner.environments.adapters.chance import NUMPY_SEEDS, OwnChance
from mac_runner.environments.adapters.environment import quiet
from mac_runner.errors import ConfigError, boundary
from mac_runner.problems import suggestion
from mac_runner.types import JsonValue

KEY: Final = ("conversation_config", "environment")
_VERSIONED: Final = re.compile(r"(.+?)-v(\d+)")
_PLAYERS_MAX: Final = 20


def full_name(game: str) -> str:
    """The name with its version: the newest where none is written. Raises ConfigError for an unknown one."""
    known = _registry()
    if game in known:
        return game
    named = [(match, name) for name in known if (match := _VERSIONED.match(name))]
    versions = [(int(match[2]), name) for match, name in named if match[1] == game and match.end() == len(name)]
    if versions:
        return max(versions)[1]
    plain = {match[1] for match, _ in named}
    base = game.partition("-")[0]
    variants = [name for match, name in named if match[1].casefold() == base.casefold()]
    raise ConfigError(
        f"conversation_config.environment: TextArena has no game {game!r}{suggestion(game, variants or plain)}", key=KEY
    )


def check_arguments(name: str, arguments: Mapping[str, JsonValue]) -> None:
    """Raises ConfigError for a keyword argument that the game does not take."""
    parameters = inspect.signature(_class_of(name).__init__).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    taken = [key for key in parameters if key != "self"]
    for key in arguments:
        if key not in taken:
            allowed = suggestion(key, taken) or "; it takes none"
            raise ConfigError.at(("settings", "arguments", key), f"the game {name} has no such argument{allowed}")


def begun(name: str, arguments: Mapping[str, JsonValue], players: int, seed: int, chance: OwnChance) -> Any:
    """A game of the library before its first move. Raises ConfigError where it cannot be played."""
    _class_of(name)
    with boundary(ConfigError, f"textarena:{name} cannot be played"), chance, _offline():
        game = import_module("textarena").make(name, **arguments)
        game.reset(num_players=players, seed=seed % NUMPY_SEEDS)
    return game


def player_counts(name: str, arguments: Mapping[str, JsonValue]) -> list[int]:
    """For how many players the game begins."""
    return [players for players in range(1, _PLAYERS_MAX + 1) if _begins(name, arguments, players)]


def _begins(name: str, arguments: Mapping[str, JsonValue], players: int) -> bool:
    try:
        begun(name, arguments, players, 0, OwnChance(0))
    except ConfigError:
        return False
    return True


@cache
def _registry() -> Mapping[str, Any]:
    """The library's description of each of its games, by name."""
    with boundary(ConfigError, "the package textarena cannot be imported"), OwnChance(0), quiet():
        import_module("textarena")
        games: Mapping[str, Any] = import_module("textarena.envs.registration").ENV_REGISTRY
        return games


@cache
def _class_of(name: str) -> Any:
    """The class of a game, imported without downloads."""
    entry = _registry()[name].entry_point
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    what = f"textarena:{name} cannot be imported under Python {sys.version_info[0]}.{sys.version_info[1]}"
    with boundary(ConfigError, what), OwnChance(0), _offline(), quiet():
        found = getattr(import_module(module), attribute)
    _hush()
    return found


def _hush() -> None:
    """Take `print` from the library's games: standard output belongs to the command line."""
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.envs."):
            vars(module).setdefault("print", _say_nothing)


def _say_nothing(*_words: object, **_how: object) -> None:
    pass


@contextmanager
def _offline() -> Iterator[None]:
    """What a game may not do while it is set up: download data, or set up a model of its own to ask."""
    nltk: Any = import_module("nltk")
    agent = import_module("textarena").agents.OpenRouterAgent
    download, init = nltk.download, agent.__init__
    nltk.download, agent.__init__ = _find_data, _refuse_judge
    try:
        yield
    finally:
        nltk.download, agent.__init__ = download, init


def _find_data(names: str | list[str], **_how: object) -> bool:
    """In place of a download: whether the data is on this machine. Raises ConfigError with the command that gets it."""
    data = import_module("nltk").data
    for name in [names] if isinstance(names, str) else names:
        for folder in ("corpora", "taggers", "tokenizers"):
            try:
                data.find(f"{folder}/{name}")
            except LookupError:
                continue
            break
        else:
            raise ConfigError(
                f"the game needs the NLTK data {name!r}, which is not on this machine, and a run downloads nothing; "
                f"`python -m nltk.downloader {name}` gets it",
                key=KEY,
            )
    return True


def _refuse_judge(*_arguments: object, **_keywords: object) -> None:
    raise ConfigError(
        "the game asks a language model of its own over the network (OpenRouter), so a run of it could not be "
        "replayed; choose another game",
        key=KEY,
    )
