"""The roles, each found by its file or registered from outside."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.night.state import Level, NightState, Step
from mac_runner.environments.town_of_salem.roles.base import (
    A_VAMPIRE,
    DOUSED,
    MAFIA_MEMBER,
    NOT_A_VAMPIRE,
    NOT_SUSPICIOUS,
    SUSPICIOUS,
    Ability,
    Alignment,
    Changed,
    DayAbility,
    NightAbility,
    Role,
    become,
    joined,
    others,
    visitors_in,
    with_article,
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
    "A_VAMPIRE",
    "DOUSED",
    "MAFIA_MEMBER",
    "NOT_A_VAMPIRE",
    "NOT_SUSPICIOUS",
    "ROLES",
    "SUSPICIOUS",
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
    "others",
    "register",
    "unregister",
    "visitors_in",
    "with_article",
]

load()
