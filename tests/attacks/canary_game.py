"""Games and discussions of marked words: every prompt is searched for marks that its reader may not see."""

from __future__ import annotations

from tests.environments.discussion.test_visibility import watch_discussion
from tests.environments.town_of_salem.watch import watch_game

DISCUSSIONS_PER_GAME = 3


def play(seed: int) -> int:
    """Watch a game, or a few discussions; how many prompts were searched."""
    if seed % 2:
        return sum(watch_discussion(DISCUSSIONS_PER_GAME * seed + number) for number in range(DISCUSSIONS_PER_GAME))
    return watch_game(seed).prompts
