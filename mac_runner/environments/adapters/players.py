"""The scripted player that knows no game: it takes any move that the game lists."""

from __future__ import annotations

import re
from random import Random
from typing import Final

from mac_runner.environments.adapters.game import GameView

_EXAMPLE: Final = re.compile(r"\[[^\[\]\n]{1,40}\]")


def random_player(view: GameView, random: Random) -> str:
    """Any of the options; else any move that the rules show in brackets; else a few words."""
    options = view.options or tuple(dict.fromkeys(_EXAMPLE.findall(view.rules)))
    return random.choice(options) if options else some_words(random)


def some_words(random: Random) -> str:
    """What a player says who has nothing to say."""
    return f"I have nothing to add, {random.randint(1, 999)}."
