"""The catalogue of roles: those found by their files, and those registered from outside.

A game knows the roles that there were when its run began, whatever was added since: while it is played, their
`Catalogue` is in force, and otherwise that of all roles. Whoever deals with other roles looks them up in `ROLES`. What
other modules derive from the roles is computed when first asked for, once for each catalogue.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from mac_runner.environments.town_of_salem.model.role import Ability, Role
from mac_runner.errors import ConfigError

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

_VERB: Final = re.compile(r"[a-z]+(?:_[a-z]+)*")

_Given = ParamSpec("_Given")
_Key = TypeVar("_Key")
_Found = TypeVar("_Found")
_Made = TypeVar("_Made")
_Value = TypeVar("_Value", covariant=True)


class Catalogue:
    """Roles by id, in the order of their names, and what was derived from them."""

    def __init__(self, roles: Iterable[Role]) -> None:
        self.roles = {role.id: role for role in sorted(roles, key=lambda role: role.name)}
        self.derived: dict[Callable[..., Any], Callable[..., Any]] = {}
        """By function that follows the roles, the same with what it returned so far."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The catalogue of all that is done inside the block."""
        before = _in_force.set(self)
        try:
            yield
        finally:
            _in_force.reset(before)

    def bound(self, function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
        """The function, with this catalogue in force whenever it is called."""
        return _Bound(self, function)


@dataclass(frozen=True, slots=True)
class _Bound(Generic[_Given, _Found]):
    """A function with its catalogue. Two of the same are equal, so scripted players share an engine."""

    catalogue: Catalogue
    function: Callable[_Given, _Found]

    def __call__(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with self.catalogue.in_force():
            return self.function(*args, **kwargs)


_in_force: ContextVar[Catalogue] = ContextVar("_in_force")
_all = Catalogue(())


def catalogue() -> Catalogue:
    """The catalogue in force."""
    return _in_force.get(_all)


def follows_roles(cached: _lru_cache_wrapper[_Made]) -> Callable[..., _Made]:
    """Decorator over `cache` or `lru_cache`: each catalogue has a cache of its own."""
    function = cached.__wrapped__
    keeping = lru_cache(**cached.cache_parameters())

    @wraps(function)
    def of_the_catalogue(*args: Any) -> _Made:
        derived = _in_force.get(_all).derived  # Not by `catalogue()`: it is asked for hundreds of times a turn.
        found = derived.get(function) or derived.setdefault(function, keeping(function))
        made: _Made = found(*args)
        return made

    return of_the_catalogue


class RoleTable(Mapping[_Key, _Value]):
    """What a function of the catalogue in force returns, as a table that others can import."""

    def __init__(self, current: Callable[[], Mapping[_Key, _Value]]) -> None:
        self._current = current

    def __getitem__(self, key: _Key) -> _Value:
        return self._current()[key]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())


ROLES: Mapping[str, Role] = RoleTable(lambda: _in_force.get(_all).roles)
"""Role id to role, in alphabetical order, of the catalogue in force."""


def catalogue_of(ids: tuple[str, ...] | None) -> Catalogue:
    """The catalogue of a run that began with these roles; None: all there are. Raises ConfigError for one gone."""
    return _all if ids is None else _recorded(ids)


@follows_roles
@cache
def _recorded(ids: tuple[str, ...]) -> Catalogue:
    if gone := [role_id for role_id in ids if role_id not in _all.roles]:
        raise ConfigError.at(
            ("game", "roles"),
            f"the run began with roles that are not there now: {', '.join(gone)}; import the code that registers them "
            "(--trust, where the run names it), or use the version that played it",
        )
    return _all if ids == tuple(_all.roles) else Catalogue(_all.roles[role_id] for role_id in ids)


def register(role: Role) -> None:
    """Add a role to the game. Raises ValueError when it contradicts another role, or names a tactic that is not there.

    A role of another package enters the prompts, the acts, the random slots of lobbies and the scripted players like
    one of this package, in runs that begin later.
    """
    # By name, because the players, who have the tactics, look at the roles.
    tactics = importlib.import_module("mac_runner.environments.town_of_salem.bots.tactics")
    tactics.check_tactics(role)
    _add(role)


def _add(role: Role) -> None:
    if role.id in _all.roles:
        raise ValueError(f"there is a role {role.id!r} already")
    if role.name != " ".join(role.name.split()) or not role.name:
        raise ValueError(f"{role.name!r} is no name of a role: it has words with one blank between them")
    if not isinstance(role.by_night, Mapping):
        raise ValueError(f"`by_night` of {role.name} is no mapping from a Step to what the role does then")
    for verb, count in Counter(ability.verb for ability in role.abilities).items():
        if count > 1:
            raise ValueError(f"two abilities of {role.name} have the verb {verb!r}")
        if _VERB.fullmatch(verb) is None:
            raise ValueError(f"the verb {verb!r} of {role.name} is not of small letters, joined by `_`: it is a tag")
    for other in _all.roles.values():
        _check(role, other)
    _set([*_all.roles.values(), role])


def unregister(role_id: str) -> None:
    """Take a role out of the game again."""
    _set(role for role in _all.roles.values() if role.id != role_id)


def _set(roles: Iterable[Role]) -> None:
    global _all
    _all = Catalogue(roles)


def _check(role: Role, other: Role) -> None:
    """An ability's verb, the name of a cause and what players write for a role mean the same in all roles."""
    if shared := _words(role) & _words(other):
        raise ValueError(f"{', '.join(sorted(shared))!r} is written for {role.name} and for {other.name}")
    for verb, ability in role.by_verb.items():
        if verb in other.by_verb and _form(ability) != _form(other.by_verb[verb]):
            raise ValueError(f"<{verb}> of {role.name} differs from that of {other.name}")
    lines = {cause.name: cause for cause in other.causes}
    for cause in role.causes:
        if lines.get(cause.name, cause) != cause:
            raise ValueError(f"the cause of death {cause.name!r} of {role.name} differs from that of {other.name}")


def _words(role: Role) -> set[str]:
    return {role.id, *(name.lower() for name in role.short_names)}


def _form(ability: Ability) -> tuple[object, ...]:
    return ability.help, ability.aims is None, ability.second_aims is None, ability.takes_text


def load() -> None:
    """Register every role that a file of this package defines."""
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in list(vars(module).values()):
            # Files import roles of others.
            if isinstance(value, Role) and _all.roles.get(value.id) is not value:
                _add(value)
