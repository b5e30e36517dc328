"""The catalogue of roles: those found by their files, and those registered from outside.

Roles that deal with other roles look them up here while a game is played. What other modules derive from the roles
is computed when first asked for, and again after a role was registered or removed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from mac_runner.environments.town_of_salem.model.role import Ability, Role


class _Cached(Protocol):
    def cache_clear(self) -> None: ...


_CachedT = TypeVar("_CachedT", bound=_Cached)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value", covariant=True)

_roles: dict[str, Role] = {}
_caches: list[_Cached] = []

ROLES: Mapping[str, Role] = MappingProxyType(_roles)
"""Role id to role, in alphabetical order; always current."""


def register(role: Role) -> None:
    """Add a role to the game. Raises ValueError when it contradicts another role.

    A role of another package enters the prompts, the acts, the random slots of lobbies and the scripted players like
    one of this package. Register it before a run begins; running games would mix both sets of roles.
    """
    if role.id in _roles:
        raise ValueError(f"there is a role {role.id!r} already")
    for other in _roles.values():
        _check(role, other)
    _set({**_roles, role.id: role})


def unregister(role_id: str) -> None:
    """Take a role out of the game again."""
    _set({other: role for other, role in _roles.items() if other != role_id})


def _set(roles: Mapping[str, Role]) -> None:
    _roles.clear()
    _roles.update(sorted(roles.items(), key=lambda item: item[1].name))
    for cached in _caches:
        cached.cache_clear()


def _check(role: Role, other: Role) -> None:
    """An ability's verb and the name of a cause mean the same in all roles."""
    verbs = {ability.verb: ability for ability in other.abilities}
    for ability in role.abilities:
        if ability.verb in verbs and _form(ability) != _form(verbs[ability.verb]):
            raise ValueError(f"<{ability.verb}> of {role.name} differs from that of {other.name}")
    lines = {cause.name: cause for cause in other.causes}
    for cause in role.causes:
        if lines.get(cause.name, cause) != cause:
            raise ValueError(f"the cause of death {cause.name!r} of {role.name} differs from that of {other.name}")


def _form(ability: Ability) -> tuple[object, ...]:
    return ability.help, ability.aims is None, ability.second_aims is None, ability.takes_text


def follows_roles(cached: _CachedT) -> _CachedT:
    """Decorator over `cache` or `lru_cache`: the cache is emptied when the roles change."""
    _caches.append(cached)
    return cached


class RoleTable(Mapping[_Key, _Value]):
    """A table made from the roles when first read, and made again when they changed."""

    def __init__(self, make: Callable[[], Mapping[_Key, _Value]]) -> None:
        self._current = follows_roles(cache(make))

    def __getitem__(self, key: _Key) -> _Value:
        return self._current()[key]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())


def load() -> None:
    """Register every role that a file of this package defines."""
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in list(vars(module).values()):
            # Files import roles of others.
            if isinstance(value, Role) and _roles.get(value.id) is not value:
                register(value)
