"""The catalogue: every role there is, found by its file."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles.base import (
    DOUSED,
    Ability,
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    Role,
    Step,
    become,
    joined,
)
from mac_runner.environments.town_of_salem.roles.catalogue import roles

__all__ = [
    "DOUSED",
    "ROLES",
    "Ability",
    "Alignment",
    "Changed",
    "DayAbility",
    "Level",
    "NightAbility",
    "Role",
    "Step",
    "become",
    "joined",
]


ROLES = roles()
"""Role id to role, in alphabetical order."""
