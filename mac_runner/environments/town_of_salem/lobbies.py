"""Role lists: the named ones, and those written out in YAML (rules, section 14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.errors import ConfigError

# The official classic list in its order; a table of n plays the first n entries.
_CLASSIC = (
    "sheriff",
    "doctor",
    "investigator",
    "jailor",
    "medium",
    "godfather",
    "framer",
    "executioner",
    "escort",
    "mafioso",
)

LOBBIES: dict[str, tuple[str, ...]] = {f"classic-{n}": _CLASSIC[:n] for n in range(7, len(_CLASSIC) + 1)}

NAMES = (
    "Abel",
    "Beatrice",
    "Caleb",
    "Dorothea",
    "Elias",
    "Felicity",
    "Gideon",
    "Hester",
    "Isaac",
    "Josephine",
    "Kenelm",
    "Lydia",
    "Matthias",
    "Naomi",
    "Obadiah",
    "Prudence",
    "Quentin",
    "Rosamund",
    "Silas",
    "Tabitha",
)
"""Public names of the players; no name is part of another."""


def role_list(lobby: str | Sequence[str]) -> tuple[str, ...]:
    """The role ids of a lobby, one a seat. Raises ConfigError for a list that cannot be dealt or played."""
    if isinstance(lobby, str):
        if lobby not in LOBBIES:
            known = ", ".join(LOBBIES)
            raise _refusal(f"there is no lobby {lobby!r}; there are: {known}, or a list of roles")
        return LOBBIES[lobby]
    slots = tuple(slot.strip().lower().replace("-", " ").replace("_", " ") for slot in lobby)
    _check(slots)
    return slots


def possible_roles(lobby: Iterable[str]) -> tuple[Role, ...]:
    """Every role somebody may hold in the course of a game of this lobby, by name."""
    found: dict[str, Role] = {}
    waiting = list(lobby)
    while waiting:
        role = ROLES[waiting.pop()]
        if role.id not in found:
            found[role.id] = role
            waiting.extend(role.may_become)
    return tuple(sorted(found.values(), key=lambda role: role.name))


def _refusal(why: str) -> ConfigError:
    return ConfigError(f"game.lobby: {why}", key=("game", "lobby"))


def _check(slots: tuple[str, ...]) -> None:
    unknown = sorted(set(slots) - set(ROLES))
    if unknown:
        raise _refusal(f"unknown roles: {', '.join(unknown)}; the roles are: {', '.join(ROLES)}")
    twice = sorted(role for role, count in Counter(slots).items() if count > 1 and ROLES[role].is_unique)
    if twice:
        raise _refusal(f"a game has one at most of: {', '.join(twice)}")
    if not 3 <= len(slots) <= len(NAMES):
        raise _refusal(f"{len(slots)} roles; a game has 3 to {len(NAMES)} players")
    groups = {group for slot in slots if (group := ROLES[slot].group) is not None}
    if len(groups) < 2:
        raise _refusal("nobody opposes anybody; a game needs the Town and the Mafia")
