"""Scripted players that users write: `player(view, random) -> str`, named like any code of an experiment file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.plugins import Plugin, place_of, plain_function

SHAPE = "a player is a function `player(view, random)` that returns its reply as text"


class _PlayerError(RequestRefusedError):
    """The function raised a plain exception, or returned no text."""


@dataclass(frozen=True, slots=True)
class OwnPlayer:
    """A player by its name and the digest of its code, which make two of them the same program."""

    name: str
    sha256: str
    function: Callable[[object, Random], object] = field(compare=False, repr=False)

    def __call__(self, view: object, random: Random) -> str:
        """Its reply. Raises RequestRefusedError with the line that failed: the conversation fails, the run goes on."""
        try:
            with boundary(_PlayerError, self.name):
                reply = self.function(view, random)
                if not isinstance(reply, str):
                    raise TypeError(f"it returned {type(reply).__name__}; {SHAPE}")
                return reply
        except _PlayerError as fault:
            cause = fault.__cause__ or fault
            text = f"the scripted player {self.name!r} failed: {place_of(cause, has_folder=False)}"
            raise RequestRefusedError(text) from cause


def own_player(plugin: Plugin) -> OwnPlayer:
    """The player of an object that an experiment names. Raises ConfigError for an object that is none."""
    return OwnPlayer(plugin.name, plugin.code.sha256, plain_function(plugin, 2, SHAPE))
