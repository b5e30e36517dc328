"""The moon, which some roles mind."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.state import GameState


def is_full_moon(state: GameState) -> bool:
    """Whether the moon is full in this night: in every second one, from the second on."""
    return state.day % 2 == 0
