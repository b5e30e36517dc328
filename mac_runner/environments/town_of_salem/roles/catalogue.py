"""Every role there is, found by its file when first asked for.

Roles that deal with other roles look them up here while a game is played; they could not import each other all around.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from mac_runner.environments.town_of_salem.roles.base import Role


@cache
def roles() -> Mapping[str, Role]:
    """Role id to role, in alphabetical order."""
    package = __name__.rpartition(".")[0]
    names = (info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = (importlib.import_module(f"{package}.{name}") for name in names)
    found = (module.ROLE for module in modules if hasattr(module, "ROLE"))
    return MappingProxyType({role.id: role for role in sorted(found, key=lambda role: role.name)})


def role(role_id: str) -> Role:
    """The role of that id."""
    return roles()[role_id]
