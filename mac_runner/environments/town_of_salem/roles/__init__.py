"""The roles, each found in its file or registered from outside."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.model.night import Level, Step
from mac_runner.environments.town_of_salem.model.role import Alignment, DayAbility, NightAbility, NightState, Role
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES, load, register, unregister

__all__ = [
    "ROLES",
    "Alignment",
    "DayAbility",
    "Level",
    "NightAbility",
    "NightState",
    "Role",
    "Step",
    "register",
    "unregister",
]

load()
