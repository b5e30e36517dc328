"""The roles, each found in its file or registered from outside, and what one from outside is made of."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.model.events import Notice, Says
from mac_runner.environments.town_of_salem.model.role import (
    TOWN_GOAL,
    Alignment,
    Changed,
    DayAbility,
    Guard,
    Level,
    NightAbility,
    NightState,
    Protection,
    Role,
    Step,
    everybody,
    others,
    strike,
)
from mac_runner.environments.town_of_salem.model.state import DeathCause, Faction, GameState, NightAction, Player
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES, load, register, unregister

__all__ = [
    "ROLES",
    "TOWN_GOAL",
    "Alignment",
    "Changed",
    "DayAbility",
    "DeathCause",
    "Faction",
    "GameState",
    "Guard",
    "Level",
    "NightAbility",
    "NightAction",
    "NightState",
    "Notice",
    "Player",
    "Protection",
    "Role",
    "Says",
    "Step",
    "everybody",
    "others",
    "register",
    "strike",
    "unregister",
]

load()
