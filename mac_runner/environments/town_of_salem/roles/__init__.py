"""The roles, each found by its file or registered from outside."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.night.state import Level, NightState, Step
from mac_runner.environments.town_of_salem.roles.base import (
    DOUSED,
    Ability,
    Alignment,
    Changed,
    DayAbility,
    NightAbility,
    Role,
    become,
    joined,
)
from mac_runner.environments.town_of_salem.roles.catalogue import (
    ROLES,
    RoleTable,
    follows_roles,
    load,
    register,
    unregister,
)

__all__ = [
    "DOUSED",
    "ROLES",
    "Ability",
    "Alignment",
    "Changed",
    "DayAbility",
    "Level",
    "NightAbility",
    "NightState",
    "Role",
    "RoleTable",
    "Step",
    "become",
    "follows_roles",
    "joined",
    "register",
    "unregister",
]

load()
