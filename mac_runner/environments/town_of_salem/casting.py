"""`game.casting`: which agent definition plays which of the roles that are dealt.

A key names seats by what was dealt to them: a role, a slot of the role list, an alignment, a faction, or `*` for all.
Where several keys name a seat, the most specific one decides, in this order. A definition plays all seats of its key; a
list of them takes turns from game to game.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.environments.town_of_salem.roles.catalogue import catalogue_of
from mac_runner.environments.town_of_salem.rules.lobbies import deal, plain, role_list, roles_of
from mac_runner.environments.town_of_salem.settings import Cast, GameConfig
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem, suggestion
from mac_runner.section import KeyPath

EVERYBODY = "*"
"""The key of all seats that no other key names."""
_KEY: KeyPath = ("game", "casting")


def side_of(role: Role) -> str:
    """The faction of a role as a casting names it: `town`, `mafia` or `neutral`, which Vampires are too."""
    return role.faction.value if role.faction in (Faction.TOWN, Faction.MAFIA) else Faction.NEUTRAL.value


def keys_of(slot: str, role_id: str) -> tuple[str, ...]:
    """The keys that name a seat whose slot became a role, the most specific one first."""
    role = ROLES[role_id]
    return (role_id, slot, role.alignment.value, side_of(role), EVERYBODY)


class Casting:
    """Who plays what, in each game."""

    def __init__(self, casting: Mapping[str, Cast], slots: Sequence[str]) -> None:
        """`casting` has none of the problems of `casting_problems`."""
        # In an order of their own: that of the file does not belong to a run's identity.
        pools = sorted((plain(key), (value,) if isinstance(value, str) else value) for key, value in casting.items())
        self._pools: dict[str, tuple[str, ...]] = dict(pools)
        self._slots = tuple(slots)

    def definitions(self, index: int, seed: int) -> tuple[str, ...]:
        """The agent definition of each slot in the game with this index and seed.

        Several lists go through all their combinations, so that each definition of one meets each of another.
        """
        chosen: dict[str, str] = {}
        for key, pool in self._pools.items():
            index, place = divmod(index, len(pool))
            chosen[key] = pool[place]
        return tuple(
            chosen[next(key for key in keys_of(slot, role) if key in chosen)]
            for slot, role in zip(self._slots, deal(self._slots, seed), strict=True)
        )


def casting_problems(game: GameConfig, casting: Mapping[str, Cast], definitions: Iterable[str]) -> Iterator[Problem]:
    """What is wrong with a casting of these agent definitions."""
    ids = tuple(definitions)
    for key, value in casting.items():
        for place, name in enumerate((value,) if isinstance(value, str) else value):
            if name not in ids:
                path = (*_KEY, key) if isinstance(value, str) else (*_KEY, key, place)
                yield Problem(path, f"there is no agent {name!r}{suggestion(name, ids)}")
    if game.seats is not None:
        yield Problem(_KEY, "is given beside game.seats, and both say who plays; leave one of the two out")
        return
    try:
        with catalogue_of(game.roles).in_force():
            seats = [keys_of(slot, role) for slot, role in possible_seats(role_list(game.lobby))]
    except ConfigError:
        return  # The environment refuses the lobby or the roles themselves, with its reason.
    wrong = tuple(_wrong_keys(casting, seats))
    yield from wrong or _uncast(casting, seats)


def possible_seats(slots: Sequence[str]) -> list[tuple[str, str]]:
    """Every slot with each role that a deal may put there, once each."""
    named = {slot for slot in slots if slot in ROLES}
    return list(
        dict.fromkeys(
            (slot, role)
            for slot in slots
            for role in roles_of(slot)
            # A random slot cannot become a unique role that has a slot of its own.
            if slot == role or role not in named or not ROLES[role].is_unique
        )
    )


def _wrong_keys(casting: Mapping[str, Cast], seats: Sequence[Sequence[str]]) -> Iterator[Problem]:
    """Keys that name no seat, or the same seats as another."""
    known = {key for keys in seats for key in keys}
    spelled: dict[str, str] = {}
    for key in casting:
        word = plain(key)
        if word in spelled:
            text = f"names the same seats as the key {spelled[word]!r}, and neither is more specific; leave one out"
            yield Problem((*_KEY, key), text)
        elif word not in known:
            yield Problem((*_KEY, key), _unknown(word, known))
        spelled.setdefault(word, key)


def _unknown(word: str, known: Iterable[str]) -> str:
    if word in ROLES:
        reason = f"no deal of this lobby holds the role {ROLES[word].name}"
    elif word in {side_of(role) for role in ROLES.values()}:
        reason = f"no deal of this lobby holds a role of the faction {word!r}"
    elif word in {role.alignment.value for role in ROLES.values()}:
        reason = f"no deal of this lobby holds a role of the alignment {word!r}"
    else:
        reason = "is no role, slot, alignment or faction of this lobby, nor '*'"
    return f"{reason}{suggestion(word, known)}"


def _uncast(casting: Mapping[str, Cast], seats: Sequence[Sequence[str]]) -> Iterator[Problem]:
    """Seats that no key names, and keys whose seats all have a more specific one."""
    words = {plain(key): key for key in casting}
    deciding = [next((key for key in keys if key in words), None) for keys in seats]
    missing = dict.fromkeys(
        f"{ROLES[keys[0]].name} ({keys[-2]})" for keys, key in zip(seats, deciding, strict=True) if key is None
    )
    if missing:
        text = f"nobody is cast for {', '.join(missing)}; add a key for it, or '{EVERYBODY}' for all that are left"
        yield Problem(_KEY, text)
    for word, key in words.items():
        if word not in deciding:
            others = [words[other] for keys, other in zip(seats, deciding, strict=True) if other and word in keys]
            text = f"casts nobody: all its seats have a more specific key ({', '.join(dict.fromkeys(others))})"
            yield Problem((*_KEY, key), f"{text}; leave it out")


def neutral_line(casts: Sequence[Mapping[str, str | None]]) -> str:
    """Who plays the neutral roles, where `casts` have the players of each side; None is of several players."""
    found = {cast[Faction.NEUTRAL] for cast in casts}
    if len(found) == 1 and None not in found:
        return f"neutral roles: played by {found.pop()} in all games"
    for side, name in ((Faction.TOWN, "Town"), (Faction.MAFIA, "Mafia")):
        if None not in found and all(cast[Faction.NEUTRAL] == cast.get(side) for cast in casts):
            return (
                f"neutral roles: played by the player of the {name}, so they are a part of its differences; "
                "game.pairings.neutral can name another"
            )
    return "neutral roles: not played by the same player in all games, and not by that of one side"


def cast_names(casting: Mapping[str, Cast]) -> frozenset[str]:
    """The agent definitions that a casting names."""
    return frozenset(name for value in casting.values() for name in ((value,) if isinstance(value, str) else value))
