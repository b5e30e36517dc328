"""Conversations written as a generator that yields what it asks."""

from mac_runner.environments.generators.conversation import AskView
from mac_runner.environments.generators.environment import Game, Player, game, generator_spec, random_player
from mac_runner.environments.generators.table import Ask, Table

__all__ = ["Ask", "AskView", "Game", "Player", "Table", "game", "generator_spec", "random_player"]
