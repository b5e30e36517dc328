"""The catalogue: every role there is, found by its file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from mac_runner.environments.town_of_salem.roles.base import (
    Ability,
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    Role,
    Step,
    become,
)

__all__ = [
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
]


def _discover() -> Mapping[str, Role]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    roles = (module.ROLE for module in modules if hasattr(module, "ROLE"))
    return MappingProxyType({role.id: role for role in sorted(roles, key=lambda role: role.name)})


ROLES = _discover()
"""Role id to role, in alphabetical order."""
